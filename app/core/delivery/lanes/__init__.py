"""A webhook's lane (its queue): `lanes` with its slots, `lane_health` with its concurrency.

`recovery` makes waiting rows due; `lane_changes` writes what outcomes change.
"""
