"""Replays: `replay` for one delivery, `bulk_replay` for many.

`replay_preview` counts a `replay_selection`. The job of a bulk replay follows its `replay_plan`,
sends `replay_sources` and tallies the `replay_outcome`. `fire_test_event` tests a webhook,
`send_now` makes waiting deliveries due, `job_changes` has what a tenant sees and does of all jobs.
"""
