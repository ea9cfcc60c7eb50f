"""Work over millions of rows.

`history` reads deliveries, `search` finds records, `console` times its `pages` over both, and
`expiry` deletes bundles.
"""
