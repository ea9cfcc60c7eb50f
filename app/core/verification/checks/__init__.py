"""The checks of a verification: `full` of everything, `incremental` from the newest anchor on.

`stored_chain` recomputes hashes; `published_log` and `log_walk` recompute roots; `anchored_heads`,
`stamps` and `settings` compare the chain with the log, with timestamps and with its tenant's row.
"""
