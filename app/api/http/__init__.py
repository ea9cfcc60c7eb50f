"""HTTP machinery that all routes share.

What is small and good goes by `fast_path`. All else passes `request_hooks`, `access/` and
`requests/` to its route, which uses `services`, `large_work`, `transactions`, `idempotency`,
`paging` and `responses/`; after a wait its `admission` is repeated. Errors become `problems`.
`documentation` writes the OpenAPI document.
"""
