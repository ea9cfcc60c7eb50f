"""What all routes share: hooks, access, parsing, responses, documentation.

A request passes `routing`, `request_hooks`, `access/`, `requests/`, then a route with its
`services` and `transactions`, and `responses/`; `documentation` writes the OpenAPI document.
"""
