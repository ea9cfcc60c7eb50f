"""Digests by mail: when they are due, what they hold, and what became of them."""
