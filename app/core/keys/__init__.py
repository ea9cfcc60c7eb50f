"""API keys: authentication, roles and pins.

`keyring` authenticates requests, `console_sessions` browsers signed in with a key. `usage` records
when keys were used, `keys` mints and lists, `revocation` revokes and says before what that ends.
"""
