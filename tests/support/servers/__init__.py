"""Servers of the tests' own, on this machine: what the service sends to and stands on.

`ports` are free, `certificates` are for TLS. `receivers` take connections and webhooks, `mail`
takes mails, `openid` signs people in, `s3` and `seaweed` keep objects, and a `pooler` stands before
PostgreSQL. What is `shared` begins anew after it died.
"""
