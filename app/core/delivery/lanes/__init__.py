"""A webhook's lane: `lanes`, `lane_slots`, `concurrency`, `lane_health`, `recovery`.

`retry_now` brings forward what waits, as `recovery` does by itself; `lane_changes` reads and writes
the lanes that outcomes change, `lane_hours` counts what they were sent by the hour.
"""
