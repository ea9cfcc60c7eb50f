"""Reading requests: `request_ids`, `parsing`, `fields`, `feeds`, `preferences`.

`large_bodies` bounds the work on large bodies; `idempotency` answers a repeated POST once.
"""
