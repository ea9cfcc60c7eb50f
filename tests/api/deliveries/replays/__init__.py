"""Test events, single replays and bulk replays.

`single` and `bulk` ask for them, `confirmed` for a replay of what a dry run showed.
"""
