"""Tenants, their keys and limits, agents and sessions."""
