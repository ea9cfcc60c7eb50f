"""A worker process: its message handling, and the services that its threads share.

Messages: `broker`, `consumer`, `wakeup_listener`, `middleware`, `shutdown`. Shared, and opened by
`runtime`: the `bulkhead`, the `flusher` of outcomes and the `active_leases` of jobs.
"""
