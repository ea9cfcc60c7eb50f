"""The state that `/readyz` answers from: how often it is computed, and what if it cannot be."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app.core.health import probes
from app.core.health import readiness as readiness_module
from app.core.health.readiness import Readiness
from app.database import Database
from app.settings import Settings
from tests.support.faults import Hands, until

PARTS = {
    "database_writes",
    "history",
    "log",
    "log_head",
    "anchoring",
    "anchored_by",
    "audit",
    "master_keys",
    "mail",
}
LACKING = "00000000"


@dataclass(frozen=True)
class Place:
    """The state of one process, on a database of its own."""

    database: Database
    readiness: Readiness

    def lack(self) -> None:
        """Change what is found: a key is in use that this process does not have."""
        with self.database.across_tenants() as session:
            session.execute(
                text("INSERT INTO master_keys (key_id) VALUES (:key)"), {"key": LACKING}
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let everyone who computes the state wait for a lock, and give up."""
        with self.database.across_tenants() as session:
            session.execute(text("LOCK TABLE master_keys IN ACCESS EXCLUSIVE MODE"))
            yield

    def said(self) -> str:
        """Ask for the state of the master keys."""
        return self.parts()["master_keys"]

    def parts(self) -> dict[str, str]:
        """Ask for every state."""
        return probes.texts(self.readiness.parts())


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def place(fresh_database: Database, settings: Settings, clock: Hands) -> Iterator[Place]:
    readiness = Readiness(fresh_database, settings, clock=clock)
    yield Place(fresh_database, readiness)
    readiness.close()


def test_the_first_to_ask_has_it_computed_and_the_others_cost_nothing(
    place: Place, clock: Hands
) -> None:
    assert place.parts().keys() == PARTS
    place.lack()
    with place.locked():
        for _ in range(100):
            assert place.said() == "up", "as it was computed"
        clock.forward(15)
        assert place.said() == "up"


def test_the_tick_renews_it(fresh_database: Database, settings: Settings) -> None:
    place = Place(fresh_database, Readiness(fresh_database, settings, every=0.05))
    assert place.said() == "up"
    place.lack()
    until(lambda: LACKING in place.said())
    place.readiness.close()


def test_a_state_that_cannot_be_renewed_is_unknown_and_says_its_age(
    place: Place, clock: Hands
) -> None:
    assert place.said() == "up"
    clock.forward(40)
    with place.locked(), capture_logs() as logged:
        assert not place.readiness._thread.work()
        assert not place.readiness._thread.work()
        parts = place.parts()
        assert "unknown: computed 40 s ago" in parts["master_keys"]
        assert {name for name in PARTS if not parts[name].startswith("unknown")} == {"log_head"}
        clock.forward(1)
        assert "unknown: computed 41 s ago" in place.said()
    assert [line["event"] for line in logged] == ["readiness_not_computed"], "once, not each time"
    assert place.readiness._thread.work()
    assert place.said() == "up"


def test_no_request_waits_for_a_computation_that_hangs(
    fresh_database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness_module, "_WAIT_SECONDS", 0.01)
    place = Place(fresh_database, Readiness(fresh_database, settings, every=0.05))
    with place.locked():
        for _ in range(20):
            assert "unknown: never computed" in place.said()
    until(lambda: place.said() == "up")
    place.readiness.close()
