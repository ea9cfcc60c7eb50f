"""Test events, single replays and bulk replays.

`single` and `bulk` ask for them.
"""
