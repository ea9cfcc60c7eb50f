"""The verbs of the product: each does one thing with a given session and never commits.

`callers` says who asks, `keys` authenticates, `idempotency` keeps first answers. `tenants`,
`tenant_control`, `tenant_settings`, `agents`, `sessions` and `findings` are resources, listed by
`feeds` and found by `lookup`, with `json_columns`. `wakeups` rings after a commit; `signing_keys`
sign; `partitions` hold history. Larger subjects have folders.
"""
