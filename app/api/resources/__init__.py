"""Resources over HTTP, one module each: its schemas and its routes.

`keys`, `tenant`, `agents`, `sessions`, `records/`, `log/`, `findings`, `webhooks`, `deliveries`,
`events`, `digests`, `jobs`, `audit/`, and `health` for operators.
"""
