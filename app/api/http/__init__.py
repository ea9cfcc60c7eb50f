"""HTTP machinery that all routes share.

A request passes `request_hooks`, `auth`, `rate_limit` and `parsing` to its view, which uses
`services`, `large_work`, `idempotency`, `paging` and `answers`; after a wait its `admission` is
repeated. Hot views answer small POSTs by `promises`. Errors become `problems`. `routes` declare
what views take and answer; `documentation` writes the OpenAPI document of it.
"""
