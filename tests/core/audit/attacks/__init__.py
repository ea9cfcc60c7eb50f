"""The audit chain attacked by the database's owner; `forging` has what several attacks do.

The victim has twelve entries; 5 and 9 are anchored. What cannot be rewritten is the log as it was
published, its head outside, and a head that a caller kept.
"""
