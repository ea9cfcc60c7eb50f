"""Operators' commands: `commands` for `tenants`, `keys`, `blobs` and the `log`; `doctor`.

Each opens a `service`.
"""
