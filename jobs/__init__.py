"""The worker: Dramatiq actors, and the shared services of each worker process.

The Procfile starts `python -m jobs`, which runs `worker`: `process/` opens a process's services,
`actors/` take messages, `delivery/` sends to webhooks, `durable/` runs durable jobs.
"""
