"""A store of their own for the few unit tests that need one, and examples without a stopwatch."""

from hypothesis import settings

from tests.faults import own_valkey

__all__ = ["own_valkey"]

# How long one example takes says more of what else the machine does than of the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
