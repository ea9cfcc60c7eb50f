"""Durable jobs: rows that say what is to be done, how far it has come, and how it ended.

`job_queue` enqueues, `leases` claims, `steps` writes what came of it, `job_rows` reads and writes
rows. `stuck_jobs` frees, `control` is the owner's, `retention` deletes old ones.
"""
