"""Keys: `api_keys`, `signing_keys`, `master_keys`."""
