"""What a database lost is found by the mark outside, and nothing else is taken for a loss."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.core import epochs, tenants
from app.core.epochs import Epoch
from app.core.jobs import job_queue
from app.core.log import history
from app.core.log.head_store import FileHead
from app.core.log.history import History, Mark
from app.database import Database
from app.errors import LogHeadLost, LogHeadUnavailable, LogRolledBack
from app.models import NO_TENANT
from tests.support.evidence.logs import FailingHead, Killed, World
from tests.support.secrets import MASTER_KEYS


@dataclass
class Place:
    """A database and the store of its mark."""

    database: Database
    store: FileHead

    def watch(self, store: Any = None) -> None:
        """Watch as a process that has just started does."""
        History(self.database, store or self.store).watch(store or self.store)

    def run(self, sql: str) -> None:
        """Do something to the database, such as what a restore does."""
        with self.database.across_tenants() as session:
            session.execute(text(sql))

    def epoch(self) -> Epoch:
        with self.database.across_tenants() as session:
            return epochs.present(session)

    def outside(self) -> Mark:
        kept = self.store.read()
        assert kept is not None
        return Mark.parse(kept)

    def lose(self) -> Mark:
        """Have the mark outside, and all that was committed with it, be gone; return it."""
        self.watch()
        lost = self.outside()
        self.run(f"DELETE FROM history_marks WHERE n >= {lost.n}")
        return lost


@pytest.fixture
def place(fresh_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(history, "EVERY", timedelta(0))
    return Place(fresh_database, FileHead(tmp_path / "head.history"))


def test_marks_go_on_and_are_of_one_epoch(place: Place) -> None:
    first = place.epoch()
    seen = []
    for _ in range(3):
        place.watch()
        seen.append(place.outside())
    assert seen == sorted(seen, key=lambda mark: mark.n)
    assert len({mark.id for mark in seen}) == 3
    assert place.epoch() == first


def test_a_mark_is_made_once_the_last_one_is_old_enough(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVERY", timedelta(hours=1))
    place.watch()
    mark = place.outside()
    place.watch()
    assert place.outside() == mark


def test_marks_go_on_when_the_clock_was_set_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "EVERY", timedelta(seconds=5))
    place.watch()
    mark = place.outside()
    ahead = Mark(mark.n, mark.id, mark.at + timedelta(days=3))
    place.run(f"UPDATE history_marks SET at = at + interval '3 days' WHERE n = {mark.n}")
    assert place.store.swap(mark.text, ahead.text)
    place.watch()
    assert place.outside().n > ahead.n
    place.watch()
    assert place.epoch().lost is None


@pytest.mark.parametrize("moment", ["before_swap", "after_swap"])
def test_a_process_that_dies_with_its_mark_leaves_no_alarm(place: Place, moment: str) -> None:
    place.watch()
    dying = FailingHead(place.store, Killed)
    setattr(dying, moment, 1)
    with pytest.raises(Killed):
        place.watch(dying)
    place.watch()
    assert place.epoch().accepted
    assert place.epoch().lost is None


def test_a_process_that_slept_with_an_old_mark_in_its_hands_alarms_nobody(place: Place) -> None:
    place.watch()

    class Sleeper(FailingHead):
        """The others go on while it has read."""

        def read(self) -> bytes | None:
            kept = super().read()
            for _ in range(3):
                place.watch()
            return kept

    before = place.outside()
    place.watch(Sleeper(place.store))
    assert place.epoch().lost is None
    assert place.outside().n > before.n


def test_a_mark_of_long_ago_put_back_is_no_loss(place: Place) -> None:
    """Then the head was restored, and not the database."""
    place.watch()
    old = place.outside()
    place.watch()
    place.run(f"DELETE FROM history_marks WHERE n <= {old.n}")
    assert place.store.swap(place.outside().text, old.text)
    place.watch()
    assert place.epoch().lost is None
    assert place.outside().n > old.n


def test_a_loss_begins_one_epoch_and_leaves_the_mark_of_what_may_be_newer(place: Place) -> None:
    lost = place.lose()
    first = place.epoch()
    for _ in range(3):
        place.watch()
    now = place.epoch()
    assert (now.accepted, now.id != first.id) == (False, True)
    assert now.lost is not None
    assert now.lost["until"] in history.said(now)
    assert place.outside() == lost
    with place.database.across_tenants() as session:
        assert job_queue.last_of(session, kind=history.KIND, dedupe_key=now.name) is not None


def test_the_newest_database_put_back_ends_it_by_itself(place: Place) -> None:
    lost = place.lose()
    place.watch()
    assert not place.epoch().accepted
    place.run(
        "INSERT INTO history_marks (n, id, at, common_until) OVERRIDING SYSTEM VALUE VALUES"
        f" ({lost.n}, '{lost.id}', '{lost.at}', 'epoch')"
    )
    place.watch()
    assert place.epoch().accepted
    assert place.outside().n > lost.n


def test_an_accepted_loss_is_no_news_and_the_next_one_is(place: Place) -> None:
    place.lose()
    watched = History(place.database, place.store)
    accepted = watched.accept()
    assert accepted is not None
    assert (place.epoch().id, place.epoch().accepted) == (accepted.id, True)
    assert watched.accept() is None
    place.watch()
    assert place.epoch().id == accepted.id
    place.lose()
    place.watch()
    assert place.epoch().id != accepted.id


def test_what_is_no_mark_is_not_written_over(place: Place, tmp_path: Path) -> None:
    (tmp_path / "head.history").write_text("nothing of the kind\n")
    with pytest.raises(LogHeadLost):
        place.watch()
    assert (tmp_path / "head.history").read_text() == "nothing of the kind\n"
    failing = FailingHead(place.store, LogHeadUnavailable)
    failing.before_read = 1
    with pytest.raises(LogHeadUnavailable):
        place.watch(failing)
    assert place.epoch().accepted


def test_every_tenant_is_told_once_in_parts(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_TENANTS_AT_ONCE", 2)
    for _ in range(5):
        tenants.create(place.database, MASTER_KEYS, "one of five")
    place.lose()
    place.watch()
    name = place.epoch().name
    steps = 0
    while True:
        with place.database.across_tenants() as session:
            job = job_queue.last_of(session, kind=history.KIND, dedupe_key=name)
            assert job is not None
            step = history.tell(session, NO_TENANT, job)
            job.cursor = step.cursor
        steps += 1
        if step.cursor is None:
            break
    assert (steps, step.progress) == (3, {"told": 5})
    with place.database.across_tenants() as session:
        for table, what in (("events", "type"), ("audit_entries", "action")):
            found = session.execute(
                text(
                    f"SELECT count(DISTINCT tenant_id), count(*) FROM {table}"
                    f" WHERE {what} IN ('history.rolled_back', 'history.roll_back')"
                )
            ).one()
            assert tuple(found) == (5, 5)


def test_leaves_that_were_lost_begin_an_epoch_too(rolled_back: World) -> None:
    """And it ends with the log's trouble, not before."""
    watched = History(rolled_back.database, None)
    rolled_back.halted(LogRolledBack)
    for _ in range(2):
        history.look_again(watched, rolled_back.sequencer())
    with rolled_back.database.across_tenants() as session:
        now = epochs.present(session)
    assert (now.accepted, "Size 400" in history.said(now)) == (False, True)
    assert watched.accept() == now
    assert watched.accept() is None
