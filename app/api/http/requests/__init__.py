"""Reading requests: `request_ids`, `client_address`, `parsing`, `fields`, `preferences`.

`large_bodies` bounds the work on large bodies.
"""
