"""Rows by the million, written straight into a database.

`crowd` is deliveries that wait, `past` ended ones of 84 days, `library` records, `chains` audit
chains and leaves of the log; `company` is one tenant with all of these.
"""
