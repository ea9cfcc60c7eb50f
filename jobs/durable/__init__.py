"""Durable jobs: `run_job` works on one by its kind's `handlers`, with `lease_renewal`."""
