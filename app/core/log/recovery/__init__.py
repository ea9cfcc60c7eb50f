"""Operators' repairs of the log: `adoption`, `leaf_copies`, `rebuild`, `succession`."""
