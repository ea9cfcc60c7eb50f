"""Reading requests: `request_ids`, `client_address`, `parsing`, `fields`, `schemas`, `preferences`.

`large_bodies` bounds the work on large bodies.
"""
