"""Fairness: endpoints that hang delay no other delivery, job or tick."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.harness.stack import Caller, RunningStack
from tests.e2e.harness.traffic import Neighbour
from tests.support.faults import until

pytestmark = pytest.mark.stacks

# About as many as find room at once by default, whoever else is slow already.
HANGING = 60
WAITING_ON_EACH = 200
# A POST that hangs is waited for 15 seconds, and so is what waits behind one. Here it is tenths of
# a second, on a machine that does much else some.
DELAY_AT_MOST = 10.0

# How long a delivery is waited for, so that a failure says how late it was.
_PATIENCE = 120.0
# From the first POSTs, which nobody knows to hang, to after their end, when all are known to.
_WATCHED_SECONDS = 20.0
_BETWEEN_SECONDS = 0.2
_REPLAYED = 60
_REPLAYS_A_SECOND = 6


@pytest.fixture
def caller(stack: RunningStack) -> Iterator[Caller]:
    """Return a tenant beside which sixty new endpoints of another have just begun to hang."""
    other = stack.fresh_tenant()
    with ExitStack() as dead:
        for number in range(HANGING):
            neighbour = dead.enter_context(Neighbour(f"the dead {number}"))
            dead.enter_context(neighbour.stalling())
            dead.callback(other.delete, other.webhook(neighbour).path)
        other.findings(other.session(), WAITING_ON_EACH)
        yield stack.fresh_tenant()


def delay(caller: Caller, session_id: str, neighbour: Neighbour) -> float:
    """Add a finding; return the seconds until the neighbour has it."""
    began = time.monotonic()
    (finding,) = caller.findings(session_id, 1)
    until(lambda: finding["id"] in neighbour.findings, _PATIENCE)
    return neighbour.findings[finding["id"]] - began


def longest(what: str, delays: list[float]) -> float:
    """Print the longest delays, and return the longest."""
    shown = " ".join(f"{seconds:.2f}" for seconds in sorted(delays, reverse=True)[:10])
    print(f"\n{what}: {len(delays)} deliveries, the slowest after {shown} s")
    return max(delays)


def test_sixty_endpoints_that_hang_delay_no_other_known_or_new(caller: Caller) -> None:
    session_id = caller.session()
    known, new = [], []
    with Neighbour("the known") as well:
        caller.webhook(well)
        delay(caller, session_id, well)
        until_when = time.monotonic() + _WATCHED_SECONDS
        while time.monotonic() < until_when:
            known.append(delay(caller, session_id, well))
            with Neighbour("the new") as fresh:
                hook = caller.webhook(fresh)
                new.append(delay(caller, session_id, fresh))
                caller.delete(hook.path)
            # As fast as it goes, the asking alone would take all of two processors.
            time.sleep(_BETWEEN_SECONDS)
    slowest = longest("known to be well", known), longest("new", new)
    assert max(slowest) < DELAY_AT_MOST


def test_jobs_and_ticks_go_on_beside_sixty_endpoints_that_hang(caller: Caller) -> None:
    """A replay at a rate needs a thread for its job, and a tick for each of its steps."""
    with Neighbour("the living") as living:
        session_id, hook = caller.session(), caller.webhook(living)
        caller.patch(hook.path, {"status": "disabled"})
        caller.findings(session_id, _REPLAYED)
        caller.patch(hook.path, {"status": "enabled"})
        began = time.monotonic()
        body = {"status": "skipped", "rate": _REPLAYS_A_SECOND}
        job = caller.post(f"{hook.path}/replay", body, 202)
        until(lambda: caller.get(f"/v1/jobs/{job['id']}")["status"] == "succeeded", _PATIENCE)
        until(lambda: len(living.findings) == _REPLAYED, _PATIENCE)
    seconds = time.monotonic() - began
    print(f"\n{_REPLAYED} replays, at most {_REPLAYS_A_SECOND} a second: {seconds:.1f} s")
