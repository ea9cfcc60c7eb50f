"""Durable jobs: database rows with a job's arguments, progress and outcome.

`job_queue` enqueues, `leases` claims and frees, `steps` records results, `job_rows` reads, writes
and deletes rows. `control` has the tenant's operations.
"""
