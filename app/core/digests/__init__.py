"""The digest: at most one mail a day to a tenant, which leaves out no new finding.

`subscriptions` handles address changes and the links that clear one, `schedule` finds due tenants,
`sending` runs the job with `content`, `message` and `digest_rows` (the states). `history` lists
digests and the next one.
"""
