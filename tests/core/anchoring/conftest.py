"""A service that anchors: its log not begun, or with witnesses or their quorum; an authority."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine

from dev.tsa import TimestampAuthority
from jobs.process.runtime import Runtime
from tests.core.anchoring.gated import Gated
from tests.support.evidence.anchoring import Place, Witnessed, new_place


@pytest.fixture
def bare(log_runtime: Runtime, log_owner: Engine, tmp_path: Path) -> Iterator[Place]:
    """Return a service whose log has not begun, without a tenant."""
    with new_place(log_runtime, log_owner, tmp_path) as made:
        yield made


@pytest.fixture
def place(bare: Place) -> Place:
    """Return the service as most tests of the folder begin with it."""
    return bare


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TimestampAuthority:
    """Return an authority that listens in a `with`; no test changes what is in its folder."""
    return TimestampAuthority(tmp_path_factory.mktemp("tsa"))


@pytest.fixture
def witnessed(place: Place) -> Iterator[Witnessed]:
    """Return a log of three leaves and its two witnesses, both of them named in the policy."""
    with ExitStack() as servers:
        yield Witnessed(place, servers)


@pytest.fixture
def gated(place: Place) -> Iterator[Gated]:
    """Return a log that has published three leaves, and needs the quorum of two for more."""
    with ExitStack() as servers:
        yield Gated(place, servers)
