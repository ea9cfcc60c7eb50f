"""What the tests of the worker's machinery stand on."""

import dataclasses
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from app.settings import Settings
from jobs.delivery import lane_run
from jobs.process.runtime import Runtime
from tests.support.callers.api import FreshTenant
from tests.support.faults import LONG_ENOUGH
from tests.support.workers.worlds import World


@pytest.fixture
def open_world(settings: Settings, tenant: FreshTenant) -> Iterator[Callable[..., World]]:
    """Make worlds with settings of the test's own; each runtime is closed at the end."""
    opened: list[Runtime] = []

    def make(threads: int = 8, **changes: Any) -> World:
        runtime = Runtime.open(dataclasses.replace(settings, **changes), threads)
        opened.append(runtime)
        return World(runtime, tenant.id)

    yield make
    for runtime in opened:
        runtime.close()


@pytest.fixture
def never_stalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a turn send all it claims, even if a receiver here is late for want of a processor."""
    monkeypatch.setattr(lane_run, "SLOWER_SECONDS", LONG_ENOUGH)


@pytest.fixture
def world(open_world: Callable[..., World], never_stalled: None) -> World:
    return open_world(retry_schedule=(0.0, 0.0, 0.0, 60.0), first_pause=timedelta(seconds=30))
