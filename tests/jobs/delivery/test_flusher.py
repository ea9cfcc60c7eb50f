"""The flusher writes outcomes in batches, and without delay where a caller waits for one."""

from collections.abc import Callable, Iterator

import pytest

from app import clock, ids
from app.core.delivery import outcomes
from app.core.delivery.outcomes import Outcome
from app.core.delivery.retries import Blame, Verdict
from app.database import Database
from app.lib.metric_registry import Tally
from app.queue import Bell
from app.settings import Settings
from jobs.process import flusher as flusher_module
from jobs.process.flusher import Flusher
from tests.support.faults import until

LONG = 600.0
GUARD = 30.0


@pytest.fixture
def flusher(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Flusher]:
    monkeypatch.setattr(flusher_module, "WINDOW_SECONDS", LONG)
    made = Flusher(database, Bell(None), settings, Tally())
    made.start()
    yield made
    made.stop(GUARD)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is written together."""
    sizes: list[int] = []
    record: Callable[..., outcomes.Recorded] = outcomes.record

    def counted(session: object, written: list[Outcome], **options: object) -> outcomes.Recorded:
        sizes.append(len(written))
        return record(session, written, **options)

    monkeypatch.setattr(outcomes, "record", counted)
    return sizes


def test_who_waits_for_an_outcome_ends_the_window(flusher: Flusher, batches: list[int]) -> None:
    for _ in range(2):
        ticket = flusher.put(an_outcome())
        assert flusher.wait(ticket, GUARD)
    assert batches == [1, 1]


def test_outcomes_without_a_waiter_gather(flusher: Flusher, batches: list[int]) -> None:
    tickets = [flusher.put(an_outcome()) for _ in range(5)]
    assert flusher.wait(tickets[0], GUARD)
    assert flusher.wait(tickets[-1], GUARD)
    assert batches == [5]


def test_a_full_batch_is_written_at_once(
    flusher: Flusher, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "AT_ONCE", 3)
    for _ in range(3):
        flusher.put(an_outcome())
    until(lambda: sum(batches) == 3)


def test_what_is_left_is_written_at_the_stop(flusher: Flusher, batches: list[int]) -> None:
    flusher.put(an_outcome())
    flusher.stop(GUARD)
    assert batches == [1]


def an_outcome() -> Outcome:
    """An attempt at an unknown delivery: it is fenced."""
    return Outcome(
        tenant_id=ids.new(),
        webhook_id=ids.new(),
        delivery_id=ids.new(),
        receiver_since=None,
        kind="event",
        claim_no=1,
        number=1,
        probe=False,
        verdict=Verdict("succeeded", Blame.NOBODY),
        outcome="succeeded",
        started_at=clock.now(),
        ended_at=clock.now(),
    )
