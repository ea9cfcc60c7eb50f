"""What others verify: writing it, and verifying it.

`log` measures the log in PostgreSQL, `audit` the audit chain that is anchored in it, `daily` the
verification of all each day.
"""
