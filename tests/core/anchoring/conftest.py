"""A service that anchors, its log not begun."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from jobs.process.runtime import Runtime
from tests.support.evidence.anchoring import Place, new_place


@pytest.fixture
def bare(log_runtime: Runtime, log_owner: Engine, tmp_path: Path) -> Iterator[Place]:
    """Return a service whose log has not begun, without a tenant."""
    with new_place(log_runtime, log_owner, tmp_path) as made:
        yield made


@pytest.fixture
def place(bare: Place) -> Place:
    """Return the service as most tests of the folder begin with it."""
    return bare
