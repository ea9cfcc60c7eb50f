"""Nobody waits for a dead neighbour: endpoints that hang delay nobody else by two seconds."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.stack import Caller, Hook, RunningStack, running
from tests.e2e.traffic import Neighbour
from tests.faults import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

HANGING = 20
WAITING_ON_EACH = 200
DELAY_AT_MOST = 2.0
# How long a delivery is waited for, so that a failure says how late it was.
PATIENCE = 40.0

_EVENTS = 15
_REPLAYED = 60
_REPLAYS_A_SECOND = 6


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStack]:
    """Run a stack as an operator would get it, with 20 endpoints that have begun to hang."""
    with ExitStack() as hanging, running(tmp_path_factory.mktemp("fairness")) as service:
        dead = [Neighbour(f"dead {number}") for number in range(HANGING)]
        for neighbour in dead:
            hanging.enter_context(neighbour)
            hanging.enter_context(neighbour.stalling())
        caller = service.fresh_tenant()
        for neighbour in dead:
            caller.webhook(neighbour)
        caller.findings(caller.session(), WAITING_ON_EACH)
        until(lambda: all(neighbour.arrived for neighbour in dead), PATIENCE)
        yield service


@pytest.fixture
def caller(stack: RunningStack) -> Caller:
    """Return somebody else than those whose endpoints hang."""
    return stack.fresh_tenant()


@pytest.fixture
def neighbour() -> Iterator[Neighbour]:
    """Return a receiver that answers at once."""
    with Neighbour("the living") as living:
        yield living


def delay(caller: Caller, session_id: str, neighbour: Neighbour) -> float:
    """Add a finding; return the seconds until the neighbour has it."""
    began = time.monotonic()
    (finding,) = caller.findings(session_id, 1)
    until(lambda: finding["id"] in neighbour.findings, PATIENCE)
    return neighbour.findings[finding["id"]] - began


def told(what: str, delays: list[float]) -> float:
    """Print delays, and return the longest."""
    print(f"\n{what}: " + " ".join(f"{seconds:.2f}" for seconds in sorted(delays)) + " s")
    return max(delays)


def test_an_endpoint_that_answers_is_not_delayed_by_twenty_that_hang(
    caller: Caller, neighbour: Neighbour
) -> None:
    session_id = caller.session()
    caller.webhook(neighbour)
    delays = [delay(caller, session_id, neighbour) for _ in range(_EVENTS)]
    assert told("a webhook known to be well", delays[1:]) < DELAY_AT_MOST


def test_a_webhook_that_is_new_is_not_delayed_by_twenty_that_hang(caller: Caller) -> None:
    session_id = caller.session()
    delays = []
    for number in range(_EVENTS):
        with Neighbour(f"new {number}") as neighbour:
            hook = caller.webhook(neighbour)
            delays.append(delay(caller, session_id, neighbour))
            caller.delete(hook.path)
    assert told("a new webhook", delays) < DELAY_AT_MOST


def test_jobs_and_ticks_go_on_while_twenty_endpoints_hang(
    caller: Caller, neighbour: Neighbour
) -> None:
    """A replay at a rate needs a thread for its job, and a tick for each of its steps."""
    session_id, hook = caller.session(), caller.webhook(neighbour)
    caller.patch(hook.path, {"status": "disabled"})
    caller.findings(session_id, _REPLAYED)
    caller.patch(hook.path, {"status": "enabled"})
    began = time.monotonic()
    body = {"status": "skipped", "rate": _REPLAYS_A_SECOND}
    job = caller.post(f"{hook.path}/replay", body, 202)
    until(lambda: caller.get(f"/v1/jobs/{job['id']}")["status"] == "succeeded", PATIENCE)
    until(lambda: len(neighbour.findings) == _REPLAYED, PATIENCE)
    print(f"\n{_REPLAYED} replays, {_REPLAYS_A_SECOND} a second: {time.monotonic() - began:.1f} s")
