"""Findings, their search and their digest; `feed` lists them."""
