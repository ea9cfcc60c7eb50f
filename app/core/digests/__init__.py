"""The digest: at most one mail a day to a tenant, which leaves out no new finding.

`schedule` finds due tenants, handles address changes and the links that clear one; `sending` runs
the job with `content` (and the mail) and `digest_rows` (the states). `history` lists digests.
"""
