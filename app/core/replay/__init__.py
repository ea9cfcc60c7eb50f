"""Sending again: `replay` for one delivery, `bulk_replay` for a `replay_selection`.

`fire_test_event` sends one event to test a webhook.
"""
