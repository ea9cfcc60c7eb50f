"""Work over millions of rows.

`history` reads deliveries, `search` finds records, `console` shows both, `expiry` deletes bundles.
"""
