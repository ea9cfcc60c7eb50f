"""What a verification checks: `full` of all, `incremental` from the newest anchor on.

`stored_chain` recomputes hashes; `published_log` and `log_walk` recompute roots; `anchored_heads`
and `stamps` hold the chain against them; `settings` against the chain.
"""
