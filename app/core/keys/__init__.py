"""API keys: authentication, roles and pins.

`keyring` authenticates requests and records when keys were used, `console_sessions` browsers that
signed in with a key. `keys` mints, lists and revokes.
"""
