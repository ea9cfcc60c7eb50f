"""Test events, single replays and bulk replays."""
