"""HTTP machinery that all routes share.

A request passes `routing`, `request_hooks`, `access/` and `requests/` to its route, which uses
`services`, `large_work`, `transactions`, `idempotency`, `feeds`, `paging` and `responses/`; after a
wait its `admission` is repeated. Errors become `problems` of `problem_kinds`. `documentation`
writes the OpenAPI document.
"""
