"""API keys: who may call, as what, and for whom.

`keyring` authenticates, `console_sessions` those who signed in with a key, `usage` writes down when
keys were used, `keys` mints, lists and revokes, `revocation` says what else that would end.
"""
