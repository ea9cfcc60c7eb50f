"""Migrations and what they make."""
