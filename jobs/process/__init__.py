"""A worker process: its message handling, and the services that its threads share.

Messages: `broker`, `middleware`. Shared, and opened by `runtime`: the `bulkhead` and the `flusher`
of outcomes.
"""
