"""Sending again: `replay` for one delivery, `bulk_replay` for many.

A `replay_selection` is shown by `replay_preview`; `replay_plan`, `replay_sources` and
`replay_outcome` are what its job is to do, does, and what became of it. `fire_test_event` tests a
webhook, `send_now` brings forward what waits.
"""
