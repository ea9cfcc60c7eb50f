"""A worker, observed, with settings of the test's own."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog

from app.settings import Settings
from jobs.process.runtime import Runtime
from tests.jobs.delivery.telemetry.observed import Observed
from tests.support.callers.api import FreshTenant


@pytest.fixture
def open_world(settings: Settings, tenant: FreshTenant) -> Iterator[Callable[..., Observed]]:
    opened: list[Runtime] = []
    with structlog.testing.capture_logs() as lines:

        def make(**changes: Any) -> Observed:
            schedule = {"retry_schedule": (0.0, 0.0, 60.0)}
            runtime = Runtime.open(dataclasses.replace(settings, **(schedule | changes)), threads=8)
            opened.append(runtime)
            return Observed(runtime, tenant.id, lines)

        yield make
        for runtime in opened:
            runtime.close()


@pytest.fixture
def world(open_world: Callable[..., Observed], never_stalled: None) -> Observed:
    return open_world()
