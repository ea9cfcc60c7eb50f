"""API keys: who may call, as what, and for whom.

`keyring` authenticates, `usage` writes down when keys were used, `keys` mints, lists and revokes.
"""
