"""The work: Dramatiq actors, and what each worker process holds while it runs them.

`worker` is what the Procfile starts: `process/` opens what a process needs, `actors/` take
messages, `delivery/` sends to webhooks, `durable/` works on jobs.
"""
