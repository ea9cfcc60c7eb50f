"""Core verbs on a real database."""
