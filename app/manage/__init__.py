"""Operators' commands: `commands`, and those for `tenants`."""
