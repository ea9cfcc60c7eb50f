"""Durable jobs: `run_job` runs a job's steps by its kind's `handlers`, with `lease_renewal`."""
