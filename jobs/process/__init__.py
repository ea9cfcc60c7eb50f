"""A worker process: what it holds, and how it takes messages.

`broker`, `consumer`, `wakeup_listener`, `middleware`, `runtime`, `shutdown`.
"""
