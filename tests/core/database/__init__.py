"""Migrations, functions, partitions and connections."""
