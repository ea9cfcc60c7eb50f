"""Rows by the million, written straight into a database.

`crowd` is waiting deliveries, `past` those of long ago, `library` records, `chains` audit chains
and leaves of the log; `company` is one tenant with a long past in all of them.
"""
