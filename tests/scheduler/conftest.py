"""What the clock's tests stand on."""

from tests.faults import own_valkey

__all__ = ["own_valkey"]
