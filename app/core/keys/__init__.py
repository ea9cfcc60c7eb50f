"""API keys: authentication, roles and pins.

`keyring` authenticates requests, `console_sessions` browsers signed in with a key. `usage` records
when keys were used, `keys` mints, lists and revokes.
"""
