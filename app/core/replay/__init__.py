"""Replays: `replay` for one delivery or a test event, `bulk_replay` for many.

`replay_selection` says which, and counts them; `replay_deliveries` makes, counts and withdraws the
deliveries of its job. `send_now` makes waiting deliveries due, `job_changes` has what a tenant sees
and does of all jobs.
"""
