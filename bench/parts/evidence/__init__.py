"""What others verify: writing it, and verifying it.

`canonical` measures canonical JSON, `ledger` the log's tree in memory, `log` the log in PostgreSQL,
`audit` the audit chain that is anchored in it, `daily` the verification of all each day.
"""
