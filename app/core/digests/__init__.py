"""The digest: at most one mail a day to a tenant, and never a finding that none of them lists.

`subscriptions` follow the address, `schedule` finds who is due, `sending` runs the job: it takes
`assigned_findings`, `content`, `message` with `links` and `tokens`, `digest_rows` (the states).
`history` lists what was sent.
"""
