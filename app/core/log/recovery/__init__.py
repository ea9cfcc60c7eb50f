"""Operators' repairs of the log.

`rebuild` (by `leaf_rows`, `checkpoint_rows`) and `succession`.
"""
