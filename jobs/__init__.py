"""The work: Dramatiq actors, and what each worker process holds while it runs them.

`python -m jobs` is what the Procfile starts, and `worker` what it runs: `process/` opens what a
process needs, `actors/` take messages, `delivery/` sends to webhooks, `durable/` works on jobs.
"""
