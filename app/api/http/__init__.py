"""HTTP machinery that all routes share.

A request passes `request_hooks`, `auth`, `rate_limit` and `parsing` to its view, which uses
`services`, `large_work`, `idempotency`, `paging` and `answers`; after a wait its `admission` is
repeated. Hot views answer small POSTs by `promises`. Errors become `problems`. Views declare by
`documentation` what they take, which writes the OpenAPI document.
"""
