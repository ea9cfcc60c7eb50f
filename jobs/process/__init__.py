"""A worker process: how it takes messages, and what its threads share.

Messages: `broker`, `consumer`, `wakeup_listener`, `middleware`, `shutdown`. Shared, and opened by
`runtime`: the `bulkhead`, the `flusher` of outcomes and the `active_leases` of jobs.
"""
