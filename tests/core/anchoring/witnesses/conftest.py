"""A log of three leaves with two witnesses."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.evidence.anchoring import Place
from tests.support.evidence.witnessed import Witnessed


@pytest.fixture
def witnessed(place: Place) -> Iterator[Witnessed]:
    """Return the log and its witnesses, both of them named in the policy."""
    with ExitStack() as servers:
        yield Witnessed(place, servers)
