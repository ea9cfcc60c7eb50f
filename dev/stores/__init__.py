"""Embedded PostgreSQL and Valkey: `placement`, `store`, `postgres`, `valkey`."""
