"""Operations of the product: each works in the caller's session and never commits.

`callers` models the caller, `keys` authenticates, `idempotency` keeps first answers. `tenants`,
`tenant_settings`, `agents`, `sessions` and `findings` are resources, listed by
`feeds` and found by `lookup`, `finding_search`, `word_index`. `wakeups` rings workers;
`signing_keys` sign; `partitions` hold history, which `epochs` name. Larger subjects have folders.
"""
