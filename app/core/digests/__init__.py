"""Mails: the digest of new findings, at most one a day, and alerts of troubles, one an hour.

`schedule` finds tenants that are due a digest, which `digest_mail` writes, and shows what became of
it. `alerts` notes `troubles` and writes the mails that tell of them. Both kinds are written as
`letters`, and handed over by `sending`.
"""
