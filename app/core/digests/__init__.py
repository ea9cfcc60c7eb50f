"""The digest: at most one mail a day to a tenant, and no new finding is left out.

`subscriptions` follow the address, `schedule` finds who is due, `sending` runs the job: it takes
`assigned_findings`, `content`, `message` with `links` and `tokens`, `digest_rows` (the states).
`history` lists what was sent.
"""
