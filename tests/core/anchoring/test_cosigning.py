"""Each witness is asked on its own to cosign; one that does not, or saw another log, is told."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from app.core.anchoring import checkpoint_round, quorum
from app.core.anchoring.evidence import Rank
from app.ledger.policy import Policy
from dev.tsa import TimestampAuthority
from jobs.actors import ticks
from tests.support.evidence.anchoring import Place, Witnessed, put_line
from tests.support.evidence.witnesses import SIZE, QuantumWitness, Witness
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
    monkeypatch.setattr(checkpoint_round, "DEADLINE_SECONDS", 0.3)

    def hang(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.recv(1 << 16)

    for url in (witnessed.listen(hang), "http://127.0.0.1:1/prefix"):
        witnessed.urls[witnessed.one.name] = url
        witnessed.name()
        place.grow()
        place.stamp()
    assert witnessed.stored() == [(4, "two"), (5, "two")]
    place.overdue()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == (witnessed.part(witnessed.one), False)


def test_a_witness_that_comes_back_goes_on_with_the_newest_checkpoint(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)]
    place.stamp()
    place.overdue()
    assert [each.part for each in place.troubles()] == [witnessed.part(witnessed.one)]
    assert place.troubles()[0].since == place.published_at(3)
    place.grow(4)
    place.stamp()
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


def test_cosignatures_that_never_make_the_quorum_are_a_trouble(witnessed: Witnessed) -> None:
    place = witnessed.place
    whole = witnessed.name()
    lines = [f"witness {n} {w.vkey} {witnessed.urls[w.name]}" for n, w in witnessed.named()]
    lines += [f"witness three {Witness('witness.test/three').vkey}", "group g all one two three"]
    place.set(witness_policy=Policy.parse("\n".join([*lines, "quorum g", ""]).encode()))
    for _ in range(3):
        place.stamp()
        assert place.troubles() == []
        place.grow()
    place.stamp()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == ("quorum", False)
    assert trouble.since == place.published_at(3)
    place.set(witness_policy=whole)
    place.stamp()
    assert place.troubles() == []


def test_a_quorum_that_fails_since_one_is_away_is_that_one_s_trouble(witnessed: Witnessed) -> None:
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)] * 4
    for _ in range(4):
        place.grow()
        place.stamp()
    place.overdue()
    assert [each.part for each in place.troubles()] == [witnessed.part(witnessed.one)]


def test_a_job_that_fails_inside_the_service_is_a_trouble_by_the_next_tick(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    place.stamp()
    place.grow()
    place.run("DELETE FROM log_tiles")
    place.stamp()
    assert {each.status for each in place.jobs()} == {"retrying"}
    assert place.troubles() == []
    place.overdue()
    both = [witnessed.part(each) for each in (witnessed.one, witnessed.two)]
    assert sorted(each.part for each in place.troubles()) == sorted(both)
    assert "inside the service" in place.troubles()[0].detail


def _log_of_another(place: Place, witness: Witness, size: int) -> None:
    """Have the witness cosign a larger log of the same name and key, which is not this one."""
    witness.faults = [lambda _: http_answer(409, f"{size}\n".encode(), SIZE)]


def test_a_witness_that_saw_more_than_was_published_is_an_alarm(witnessed: Witnessed) -> None:
    place = witnessed.place
    _log_of_another(place, witnessed.one, 4)
    with structlog.testing.capture_logs() as lines:
        place.stamp()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == (witnessed.part(witnessed.one), True)
    assert "size 4, and 3 is all that was published" in trouble.detail
    (told,) = [each for each in lines if each["event"] == "witness_alarm"]
    assert told["log_level"] == "critical"
    assert witnessed.stored() == [(3, "two")]


@pytest.mark.parametrize(
    ("then", "said"),
    [
        # The database was restored without its head: same name, same key, another tree.
        (lambda place: place.grow(), "422"),
        (
            lambda place: place.run("DELETE FROM checkpoint_cosignatures"),
            "another log of ours of size 3",
        ),
    ],
    ids=["a larger log", "the same size"],
)
def test_a_witness_that_cosigned_another_root_is_an_alarm(
    witnessed: Witnessed, then: Callable[[Place], object], said: str
) -> None:
    place, one = witnessed.place, witnessed.one
    place.stamp()
    assert one.seen is not None
    one.seen = replace(one.seen, root=b"\1" * 32)
    then(place)
    place.stamp()
    (trouble,) = place.troubles()
    assert trouble.alarm
    assert said in trouble.detail


def test_also_if_that_one_does_not_say_again_at_which_size_it_is(witnessed: Witnessed) -> None:
    witnessed.one.faults = [
        lambda _: http_answer(409, b"3\n", SIZE),
        lambda _: http_answer(409, b"another root\n"),
    ]
    witnessed.place.stamp()
    (trouble,) = witnessed.place.troubles()
    assert trouble.alarm
    assert "another log of ours of size 3" in trouble.detail


def test_an_alarm_stays_until_the_witness_accepts_what_is_published(witnessed: Witnessed) -> None:
    place = witnessed.place
    _log_of_another(place, witnessed.one, 9)
    with structlog.testing.capture_logs() as lines:
        place.stamp()
        said = place.troubles()[0].detail
        witnessed.one.faults = [lambda _: http_answer(500)]
        place.stamp()
        (trouble,) = place.troubles()
        assert (trouble.alarm, trouble.detail) == (True, said), "being away takes nothing back"
        _log_of_another(place, witnessed.one, 9)
        place.retry()
        place.stamp()
    assert place.troubles() == []
    told = [each["event"] for each in lines if each.get("part") == witnessed.part(witnessed.one)]
    assert told == ["witness_alarm", "anchoring_recovered"]


def test_a_witness_ahead_of_this_checkpoint_but_not_of_the_newest_is_no_alarm(
    witnessed: Witnessed,
) -> None:
    """Another worker published and submitted more while this one was asking."""
    place = witnessed.place
    one = witnessed.one

    def overtake(request: Request) -> bytes:
        place.grow(4)
        one.seen = place.world.published().checkpoint
        return http_answer(409, f"{one.size}\n".encode(), SIZE)

    one.faults = [overtake]
    place.stamp()
    assert place.troubles() == []
    assert (7, "one") in witnessed.stored()


def test_a_monitor_finds_a_quorum_while_the_log_goes_on_growing(witnessed: Witnessed) -> None:
    """Witnesses are asked each minute, the log publishes each second."""
    place = witnessed.place
    ticks.cosign_checkpoint(place.runtime)
    place.work()
    place.grow()
    assert shown(witnessed) == 3, "the newest that has it"
    ticks.cosign_checkpoint(place.runtime)
    place.work()
    place.grow()
    assert shown(witnessed) == 4
    # Half a quorum, a line that is no cosignature, and a line on a checkpoint of an hour ago.
    put_line(place.owner, witnessed.one)
    assert shown(witnessed) == 4
    put_line(place.owner, witnessed.two, witnessed.two.cosign("another text\n"))
    assert shown(witnessed) == 4
    place.run("UPDATE checkpoints SET published_at = published_at - interval '1 hour'")
    assert shown(witnessed) == 5, "witnesses that are away hide nothing for long"
    place.set(witness_policy=None)
    assert shown(witnessed) == 5


def shown(witnessed: Witnessed) -> int:
    """Return the size that monitors are shown."""
    place = witnessed.place
    with place.database.across_tenants() as session:
        policy = place.runtime.settings.witness_policy
        return quorum.newest_met(session, policy, place.world.published()).checkpoint.size


def test_cosignatures_by_ml_dsa_make_a_quorum(witnessed: Witnessed) -> None:
    place, one = witnessed.place, QuantumWitness("witness.test/quantum")
    one.log = place.key()
    url = witnessed.serve(one.answer)
    policy = Policy.parse(f"witness q {one.quantum_vkey} {url}\nquorum q\n".encode())
    place.set(witness_policy=policy)
    place.stamp()
    assert place.troubles() == []
    query = "SELECT count(*) FROM checkpoint_cosignatures WHERE key_hash = :hash"
    assert place.scalar(query, hash=one.quantum_vkey.key_hash)
    assert place.chosen(0, policy).rank is Rank.WITNESSED
    # Its Ed25519 key is not in the policy; and a line over another tree does not count.
    assert place.count("checkpoint_cosignatures") == 1
    last = place.world.published().checkpoint
    forged = one.quantum(replace(last, root=bytes(32)))
    place.run("UPDATE checkpoint_cosignatures SET line = :line", line=str(forged))
    assert place.chosen(0, policy).rank is Rank.LOG
