"""Operators' repairs of the log.

`rebuild` (by `stored_tree`, `leaf_copies`, `checkpoint_rows`), `adoption`, `succession`.
"""
