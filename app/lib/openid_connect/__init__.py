"""OpenID Connect, as a relying party: `provider` talks to one, `tokens` has the protocol.

Only `tokens` imports Authlib, and is imported by the first sign-in.
"""
