"""Operators' commands: `commands` for `tenants`, `keys` and the `log`, on a `service`; `doctor`."""
