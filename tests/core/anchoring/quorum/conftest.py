"""A log behind a quorum of two witnesses."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.core.anchoring.quorum.gated import Gated
from tests.support.evidence.anchoring import Place


@pytest.fixture
def gated(place: Place) -> Iterator[Gated]:
    """Return a log that has published three leaves, and needs the quorum for more."""
    with ExitStack() as servers:
        yield Gated(place, servers)
