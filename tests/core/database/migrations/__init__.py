"""Migrations and what they make; `revisions` takes a database to an older one."""
