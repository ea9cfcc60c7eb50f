"""A log of three leaves."""

import pytest

from tests.support.evidence.anchoring import Place


@pytest.fixture
def place(bare: Place) -> Place:
    """Return a service that has published a checkpoint of three leaves."""
    bare.grow(3)
    return bare
