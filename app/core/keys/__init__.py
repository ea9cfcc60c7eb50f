"""API keys, people and operators: authentication, roles and pins.

`keyring` authenticates requests and records when keys were used, `console_sessions` browsers that
signed in, and operators. `keys` mints, lists and revokes; `groups` gives people of an OpenID
provider their roles; `saved_views` keeps filters by name.
"""
