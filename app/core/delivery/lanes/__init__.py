"""A webhook's lane: `lanes`, `lane_slots`, `concurrency`, `lane_health`, `recovery`.

`lane_changes` reads and writes the lanes that outcomes change.
"""
