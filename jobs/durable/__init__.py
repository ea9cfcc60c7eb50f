"""Durable jobs: `run_job` runs a job's steps, by the handler of its kind."""
