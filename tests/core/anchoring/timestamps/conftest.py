"""A log of three leaves, and an authority."""

import pytest

from dev.tsa import TimestampAuthority
from tests.support.evidence.anchoring import Place


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TimestampAuthority:
    """Return an authority that listens in a `with`; no test changes what is in its folder."""
    return TimestampAuthority(tmp_path_factory.mktemp("tsa"))


@pytest.fixture
def place(bare: Place) -> Place:
    """Return a service that has published a checkpoint of three leaves."""
    bare.grow(3)
    return bare
