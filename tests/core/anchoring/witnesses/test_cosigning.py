"""Each witness is asked on its own to cosign, all of a tick for one checkpoint."""

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.core.anchoring import external_post
from app.core.anchoring.evidence import Rank
from app.ledger.notes import Note
from dev.tsa import TimestampAuthority
from jobs.actors import ticks
from tests.support.evidence.witnessed import Witnessed
from tests.support.evidence.witnesses import Witness
from tests.support.servers.receivers import Request, http_answer


def test_each_witness_cosigns_the_newest_checkpoint_once(witnessed: Witnessed) -> None:
    place = witnessed.place
    place.stamp()
    place.stamp()
    assert witnessed.stored() == [(3, "one"), (3, "two")]
    assert (witnessed.one.asked, witnessed.two.asked) == (1, 1)
    for size in (1, 300):
        place.grow(size)
        place.stamp()
    assert witnessed.stored()[2:] == [(4, "one"), (4, "two"), (304, "one"), (304, "two")]
    assert witnessed.one.asked == 3, "it is told from where it is, and need not say"
    assert place.troubles() == []
    assert len(place.jobs()) == 2


def test_what_is_stored_is_the_line_that_others_can_check(witnessed: Witnessed) -> None:
    witnessed.place.stamp()
    last = witnessed.place.world.published()
    with witnessed.place.owner.connect() as connection:
        rows = connection.execute(text("SELECT * FROM checkpoint_cosignatures ORDER BY name")).all()
    note = Note.parse(last.note + "".join(f"{row.line}\n" for row in rows).encode())
    signed = note.signed_by([witnessed.one.vkey, witnessed.two.vkey])
    assert [each.key for each in signed] == [witnessed.one.vkey, witnessed.two.vkey]
    assert [int(row.cosigned_at.timestamp()) for row in rows] == [each.seconds for each in signed]


def test_a_witness_that_knows_the_log_already_is_asked_from_where_it_is(
    witnessed: Witnessed,
) -> None:
    """Its answers were lost, or another service submits our checkpoints too."""
    place = witnessed.place
    place.stamp()
    place.grow(5)
    place.stamp()
    place.run("DELETE FROM checkpoint_cosignatures")
    place.grow(7)
    asked = witnessed.one.asked
    place.stamp()
    assert witnessed.one.asked == asked + 2
    assert witnessed.stored() == [(15, "one"), (15, "two")]
    place.run("DELETE FROM checkpoint_cosignatures")
    place.stamp()
    assert witnessed.stored() == [(15, "one"), (15, "two")], "also of the very same checkpoint"
    assert place.troubles() == []


def test_one_that_fails_keeps_the_other_from_nothing(
    witnessed: Witnessed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, hanging, dripping or gone: the other has cosigned before that one has given up."""
    place = witnessed.place
    monkeypatch.setattr(external_post, "DEADLINE_SECONDS", 0.3)

    def hang(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.recv(1 << 16)

    for url in (witnessed.listen(hang), "http://127.0.0.1:1/prefix"):
        witnessed.urls[witnessed.one.name] = url
        witnessed.name()
        place.grow()
        place.age()
        place.stamp()
    assert witnessed.stored() == [(4, "two"), (5, "two")]
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == (witnessed.part(witnessed.one), False)


def test_a_witness_that_comes_back_goes_on_with_the_newest_checkpoint(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)] * 2
    place.age()
    place.stamp()
    place.grow(4)
    place.retry()
    assert [each.part for each in place.troubles()] == [witnessed.part(witnessed.one)]
    assert place.troubles()[0].since == place.published_at(3)
    place.stamp()
    assert (7, "one") in witnessed.stored()
    assert place.troubles() == []


def test_all_whom_a_tick_asks_are_asked_for_one_checkpoint(
    witnessed: Witnessed, tmp_path: Path
) -> None:
    """The log publishes more before the first is asked, and again before one is tried again."""
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)]
    with TimestampAuthority(tmp_path / "tsa") as authority:
        place.stamped_by(authority.url, authority.ca_file)
        ticks.stamp_checkpoint(place.runtime)
        place.grow(3)
        place.work()
        place.grow(3)
        place.retry()
    assert witnessed.stored() == [(3, "one"), (3, "two")]
    best = place.chosen(0, place.runtime.settings.witness_policy)
    assert (best.rank, best.published.checkpoint.size) == (Rank.BOTH, 3)
    assert best.timestamp is not None


def test_who_is_still_being_asked_at_the_next_tick_is_asked_for_the_same(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    ticks.stamp_checkpoint(place.runtime)
    place.grow()
    ticks.stamp_checkpoint(place.runtime)
    place.work()
    assert witnessed.stored() == [(3, "one"), (3, "two")]
    place.stamp()
    assert witnessed.stored()[2:] == [(4, "one"), (4, "two")]


def test_a_job_from_before_the_log_was_succeeded_asks_for_nothing(witnessed: Witnessed) -> None:
    place = witnessed.place
    ticks.stamp_checkpoint(place.runtime)
    place.run("UPDATE jobs SET args = replace(args, :new, :old)", new='n":1,', old='n":0,')
    place.work()
    assert witnessed.stored() == []
    assert {each.status for each in place.jobs()} == {"succeeded"}


def test_witnesses_are_asked_side_by_side(witnessed: Witnessed) -> None:
    """Each has a job: two workers at once have both."""
    place = witnessed.place
    both = threading.Barrier(2, timeout=60)

    def wait_for_the_other(witness: Witness) -> Callable[[Request], Any]:
        def answer(request: Request) -> Any:
            both.wait()
            return witness.answer(request)

        return answer

    witnessed.one.faults = [wait_for_the_other(witnessed.one)]
    witnessed.two.faults = [wait_for_the_other(witnessed.two)]
    ticks.stamp_checkpoint(place.runtime)
    workers = [threading.Thread(target=place.work) for _ in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert witnessed.stored() == [(3, "one"), (3, "two")]
