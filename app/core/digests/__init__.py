"""Mails: the digest of new findings, at most one a day, and alerts of troubles, one an hour.

`schedule` finds tenants that are due a digest, `sending` runs its job with `content` and
`digest_rows`; `history` lists digests. `alerts` notes `troubles` and claims their mails, which
`alert_mails` sends. Both are written as `letters`, and handed over by `attempts`.
"""
