"""Keys: `api_keys`, `console_sessions`, `signing_keys`, `master_keys`."""
