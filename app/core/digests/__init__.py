"""The digest: at most one mail a day to a tenant, which leaves out no new finding.

`subscriptions` handles address changes, `schedule` finds due tenants, `sending` runs the job with
`assigned_findings`, `content`, `message` (`links`, `tokens`) and `digest_rows` (the states).
`history` lists digests, `upcoming` has the next, `troubles` what keeps them from going out.
"""
