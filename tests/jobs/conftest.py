"""What the tests of the worker's machinery stand on."""

from tests.faults import own_valkey

__all__ = ["own_valkey"]
