"""Findings, their search and their digest."""
