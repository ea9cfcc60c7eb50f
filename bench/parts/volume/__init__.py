"""Work over millions of rows.

`history` reads deliveries, `search` finds records, `console` times its `pages` over both, `expiry`
deletes bundles, and `blobs` has them in an object store.
"""
