"""Checks an evidence pack."""
