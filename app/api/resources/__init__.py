"""Resources over HTTP, one module each; `*_schemas` beside the larger ones.

`keys`, `tenant`, `agents`, `sessions`, `records/`, `traces`, `log`, `findings`, `webhooks` and
`webhook_schemas`, `deliveries/`, `events`, `jobs`, `search`, `audit` and
`verification`, and `health` for operators.
"""
