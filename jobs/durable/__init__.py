"""Durable jobs: `run_job` runs a job's steps, by the `handlers` of its kind."""
