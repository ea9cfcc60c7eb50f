"""A store of their own for the few unit tests that need one."""

from tests.faults import own_valkey

__all__ = ["own_valkey"]
