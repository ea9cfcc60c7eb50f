"""A webhook's lane (its queue): `lanes`, `lane_slots`, `concurrency`, `lane_health`, `recovery`.

`retry_now` makes waiting rows due on request, as `recovery` does by itself; `lane_changes` reads
and writes the lanes that outcomes change, `lane_hours` keeps hourly counts.
"""
