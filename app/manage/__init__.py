"""Operators' commands: `commands`, those for `tenants`, `keys` and the `log`, on a `service`."""
