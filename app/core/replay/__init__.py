"""Replays: `replay` for one delivery or a test event, `bulk_replay` for many.

`replay_preview` counts a `replay_selection`. The job of a bulk replay follows its `replay_plan` and
makes, counts and withdraws `replay_deliveries`. `send_now` makes waiting deliveries due,
`job_changes` has what a tenant sees and does of all jobs.
"""
