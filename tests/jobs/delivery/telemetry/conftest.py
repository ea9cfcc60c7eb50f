"""A worker, observed, with settings of the test's own."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from tests.jobs.delivery.telemetry.observed import Observed
from tests.support.workers.worlds import World


@pytest.fixture
def open_world(open_world: Callable[..., World]) -> Iterator[Callable[..., Observed]]:
    with structlog.testing.capture_logs() as lines:

        def make(**changes: Any) -> Observed:
            world = open_world(**({"retry_schedule": (0.0, 0.0, 60.0)} | changes))
            return Observed(world.runtime, world.tenant_id, lines)

        yield make


@pytest.fixture
def world(open_world: Callable[..., Observed], never_stalled: None) -> Observed:
    return open_world()
