"""Retries, lanes, signatures and outbound requests."""
