"""Work over millions of rows.

`history` is of deliveries, `search` of records, `console` of both as its `pages` show them;
`expiry` ends records.
"""
