"""HTTP machinery that all routes share.

A request passes `request_hooks`, `access/` and `requests/` to its route, which uses `services`,
`large_work`, `transactions`, `idempotency`, `paging` and `responses/`; after a wait its `admission`
is repeated. Hot routes answer small POSTs by `promises`. Errors become `problems`.
`documentation` writes the OpenAPI document.
"""
