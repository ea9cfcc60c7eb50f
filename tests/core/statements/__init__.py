"""Statements of completed sessions: what they count, and that nothing comes past them."""
