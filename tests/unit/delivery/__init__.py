"""Retries, lanes, signatures, addresses and URLs; `networks` has those that are allowed."""
