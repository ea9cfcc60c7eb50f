"""Checkpoints and witnesses: each asked on its own, what it says checked, and its alarms."""

import socket
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import Engine, text

from app.core.anchoring import evidence, external_post
from app.core.anchoring.evidence import Rank
from app.core.log import publication
from app.dev.tsa import TimestampAuthority
from app.ledger.notes import Note, Signature, VerifierKey, key_hash
from app.ledger.policy import ML_DSA_44_COSIGNATURE, Policy
from app.lib.crypto.timestamps import read_certificates
from jobs.actors import stamp_checkpoint
from jobs.process.runtime import Runtime
from tests.support.evidence.anchoring import Place, new_place, put_stamp
from tests.support.evidence.witnessed import Witnessed
from tests.support.evidence.witnesses import SIZE, Witness
from tests.support.servers.receivers import Receiver, Request, http_answer


@pytest.fixture
def witnessed(log_runtime: Runtime, log_owner: Engine, tmp_path: Path) -> Iterator[Witnessed]:
    with new_place(log_runtime, log_owner, tmp_path) as place, ExitStack() as servers:
        yield Witnessed(place, servers)


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
    signed = note.verify([witnessed.one.vkey, witnessed.two.vkey])
    assert [each.key for each in signed] == [witnessed.one.vkey, witnessed.two.vkey]
    assert [int(row.cosigned_at.timestamp()) for row in rows] == [each.seconds for each in signed]


def test_a_witness_that_knows_the_log_already_is_asked_from_where_it_is(
    witnessed: Witnessed,
) -> None:
    """Its answers were lost, or somebody else submits our checkpoints too."""
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
    with place.owner.connect() as connection:
        query = "SELECT published_at FROM checkpoints WHERE size = 3"
        assert place.troubles()[0].since == connection.scalar(text(query))
    place.stamp()
    assert (7, "one") in witnessed.stored()
    assert place.troubles() == []


# One checkpoint a tick


def test_all_whom_a_tick_asks_are_asked_for_one_checkpoint(
    witnessed: Witnessed, tmp_path: Path
) -> None:
    """The log publishes more before the first is asked, and again before one is tried again."""
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)]
    with TimestampAuthority(tmp_path / "tsa") as authority:
        place.stamped_by(authority.url, authority.ca_file)
        stamp_checkpoint.run(place.runtime)
        place.grow(3)
        place.work()
        place.grow(3)
        place.retry()
    assert witnessed.stored() == [(3, "one"), (3, "two")]
    best = _best(place, 0, place.runtime.settings.witness_policy)
    assert (best.rank, best.published.checkpoint.size) == (Rank.BOTH, 3)
    assert best.timestamp is not None


def test_who_is_still_being_asked_at_the_next_tick_is_asked_for_the_same(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    stamp_checkpoint.run(place.runtime)
    place.grow()
    stamp_checkpoint.run(place.runtime)
    place.work()
    assert witnessed.stored() == [(3, "one"), (3, "two")]
    place.stamp()
    assert witnessed.stored()[2:] == [(4, "one"), (4, "two")]


def test_who_failed_is_asked_for_the_next_tick_s_checkpoint(witnessed: Witnessed) -> None:
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)]
    place.stamp()
    place.grow()
    place.stamp()
    assert witnessed.stored() == [(3, "two"), (4, "one"), (4, "two")]


def test_a_job_from_before_the_log_was_succeeded_asks_for_nothing(witnessed: Witnessed) -> None:
    place = witnessed.place
    stamp_checkpoint.run(place.runtime)
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
    with place.owner.connect() as connection:
        query = "SELECT published_at FROM checkpoints WHERE size = 3"
        assert trouble.since == connection.scalar(text(query))
    place.set(witness_policy=whole)
    place.stamp()
    assert place.troubles() == []


def test_a_quorum_that_fails_since_one_is_away_is_that_one_s_trouble(witnessed: Witnessed) -> None:
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)] * 4
    for _ in range(4):
        place.age()
        place.stamp()
        place.grow()
    assert [each.part for each in place.troubles()] == [witnessed.part(witnessed.one)]


def test_one_failed_try_is_no_trouble_yet(witnessed: Witnessed) -> None:
    place = witnessed.place
    witnessed.one.faults = [lambda _: http_answer(503)] * 4
    place.stamp()
    for _ in range(2):
        assert place.troubles() == []
        place.retry()
    assert place.troubles() == []
    place.retry()
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
    place.stamp()
    assert place.troubles() == []
    place.age()
    place.stamp()
    both = [witnessed.part(each) for each in (witnessed.one, witnessed.two)]
    assert sorted(each.part for each in place.troubles()) == sorted(both)
    assert "inside the service" in place.troubles()[0].detail


# Alarms


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


def test_a_witness_to_whom_this_log_is_not_what_it_was_is_an_alarm(witnessed: Witnessed) -> None:
    """The database was restored without its head: same name, same key, another tree."""
    place = witnessed.place
    place.stamp()
    one = witnessed.one
    assert one.seen is not None
    one.seen = type(one.seen)(one.seen.origin, one.seen.size, b"\1" * 32)
    place.grow()
    place.stamp()
    (trouble,) = place.troubles()
    assert trouble.alarm
    assert "422" in trouble.detail


def test_a_witness_with_another_root_for_the_same_size_is_an_alarm(witnessed: Witnessed) -> None:
    place = witnessed.place
    place.stamp()
    one = witnessed.one
    assert one.seen is not None
    one.seen = type(one.seen)(one.seen.origin, one.seen.size, b"\1" * 32)
    place.run("DELETE FROM checkpoint_cosignatures")
    place.stamp()
    (trouble,) = place.troubles()
    assert trouble.alarm
    assert "another log of ours of size 3" in trouble.detail


def test_also_if_that_one_does_not_say_again_at_which_size_it_is(witnessed: Witnessed) -> None:
    place = witnessed.place
    witnessed.one.faults = [
        lambda _: http_answer(409, b"3\n", SIZE),
        lambda _: http_answer(409, b"another root\n"),
    ]
    place.stamp()
    (trouble,) = place.troubles()
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


# What a witness may do wrong


def _line_of_another(witness: Witness, text: str) -> str:
    return f"{Witness(witness.name).cosign(text)}\n"


def _other_text(witness: Witness, text: str) -> str:
    return f"{witness.cosign(text.replace('3', '4', 1))}\n"


def _no_time(witness: Witness, text: str) -> str:
    return f"{witness.cosign(text, 0)}\n"


def _far_future(witness: Witness, text: str) -> str:
    return f"{witness.cosign(text, 1 << 62)}\n"


def _no_newline(witness: Witness, text: str) -> str:
    return str(witness.cosign(text))


def _note(witness: Witness, text: str) -> str:
    return f"{text}\n{witness.cosign(text)}\n"


def _nothing(witness: Witness, text: str) -> str:
    return ""


def _too_many(witness: Witness, text: str) -> str:
    return f"{witness.cosign(text)}\n" * 101


NO_COSIGNATURES = [
    _line_of_another,
    _other_text,
    _no_time,
    _far_future,
    _no_newline,
    _note,
    _nothing,
    _too_many,
]


def test_a_line_that_is_no_cosignature_by_its_key_is_not_stored(witnessed: Witnessed) -> None:
    place, one = witnessed.place, witnessed.one
    said = place.world.published().checkpoint.text
    place.age()
    for body in NO_COSIGNATURES:
        one.faults = [lambda _, body=body: http_answer(200, body(one, said).encode())]  # type: ignore[misc]
        place.stamp()
        assert (3, "one") not in witnessed.stored(), body
        (trouble,) = place.troubles()
        assert (trouble.part, trouble.alarm) == (witnessed.part(one), False), body
        place.run("DELETE FROM jobs; DELETE FROM anchoring_troubles")


NO_ANSWERS = [
    http_answer(409, b"03\n", SIZE),
    http_answer(409, b"3", SIZE),
    http_answer(409, b"-1\n", SIZE),
    http_answer(409, b"99999999999999999999\n", SIZE),
    http_answer(409, b"", SIZE),
    http_answer(400),
    http_answer(403),
    http_answer(404),
    http_answer(302, headers={"Location": "http://127.0.0.1:1/"}),
    http_answer(200, b"0" * (10 << 20)),
    http_answer(200, b"\xff\n"),
]


def test_an_answer_that_says_nothing_is_a_failure_and_no_alarm(witnessed: Witnessed) -> None:
    place, one = witnessed.place, witnessed.one
    for answer in NO_ANSWERS:
        place.age()
        one.faults = [lambda _, answer=answer: answer]  # type: ignore[misc]
        place.stamp()
        (trouble,) = place.troubles()
        assert (trouble.part, trouble.alarm) == (witnessed.part(one), False), answer[:80]
        place.retry()
        assert place.troubles() == []
        place.grow()


def test_a_witness_that_is_elsewhere_each_time_is_left_for_later(witnessed: Witnessed) -> None:
    place = witnessed.place
    witnessed.one.faults = [
        lambda _: http_answer(409, b"1\n", SIZE),
        lambda _: http_answer(409, b"2\n", SIZE),
    ] * 4
    place.age()
    place.stamp()
    assert witnessed.one.asked == 4
    assert "another size each time" in place.troubles()[0].detail


def test_another_algorithm_is_kept_and_counts_for_nothing(witnessed: Witnessed) -> None:
    place = witnessed.place
    one = witnessed.one
    public = bytes(1312)
    name = one.name
    other = VerifierKey(
        name, key_hash(name, ML_DSA_44_COSIGNATURE, public), ML_DSA_44_COSIGNATURE, public
    )
    witnessed.name(extra=f"witness quantum {other}")
    said = place.world.published().checkpoint.text
    lines = [one.cosign(said), Signature(name, other.key_hash, bytes(2428)), one.cosign(said)]
    one.faults = [lambda _: http_answer(200, "".join(f"{line}\n" for line in lines).encode())]
    place.stamp()
    assert witnessed.stored() == [(3, "one"), (3, "one"), (3, "two")]
    with place.owner.connect() as connection:
        query = "SELECT cosigned_at FROM checkpoint_cosignatures WHERE key_hash = :hash"
        assert connection.scalar(text(query), {"hash": other.key_hash}) is None
    alone = Policy.parse(f"witness quantum {other}\nquorum quantum\n".encode())
    assert _best(place, 0, alone).rank is Rank.LOG


# Which evidence is chosen


def _best(place: Place, index: int, policy: Policy | None) -> evidence.Evidence:
    with place.database.across_tenants(snapshot=True) as session:
        last = publication.current(session)
        assert last is not None
        return evidence.best(session, last, index, policy, place.runtime.settings.tsa_ca_file)


def test_a_quorum_proves_more_than_a_timestamp_and_that_more_than_the_log(
    witnessed: Witnessed, tmp_path: Path
) -> None:
    place = witnessed.place
    authority = TimestampAuthority(tmp_path / "tsa")
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    policy = witnessed.name("all")
    assert (_best(place, 0, policy).rank, _size(place, 0, policy)) == (Rank.LOG, 3)
    place.grow()
    put_stamp(place.owner, authority, 4)
    place.grow()
    put_stamp(place.owner, authority, 5)
    assert (_best(place, 0, policy).rank, _size(place, 0, policy)) == (Rank.TIMESTAMPED, 4)
    place.grow()
    witnessed.two.faults = [lambda _: http_answer(500)]
    place.stamp()
    assert _best(place, 0, policy).rank is Rank.TIMESTAMPED, "one of two is no quorum"
    for size in (7, 8):
        assert place.grow() == size
        place.stamp()
    found = _best(place, 0, policy)
    assert (found.rank, found.published.checkpoint.size) == (Rank.WITNESSED, 7)
    assert len(found.cosignatures) == 2
    assert found.timestamp is None, "all of it is of one checkpoint"
    any_of_them = witnessed.name("any")
    assert _size(place, 0, any_of_them) == 6
    assert _size(place, 6, any_of_them) == 7
    assert _size(place, 7, policy) == 8


def test_a_checkpoint_that_is_stamped_and_cosigned_proves_more_than_one_that_is_either(
    witnessed: Witnessed, tmp_path: Path
) -> None:
    place = witnessed.place
    policy = witnessed.name("all")
    tenant = place.tenant()
    place.anchor()
    authority = TimestampAuthority(tmp_path / "tsa")
    with Receiver(http_answer(500)) as receiver:
        place.stamped_by(receiver.url(), authority.ca_file)
        assert place.publish() == 4
        place.stamp()
        while any(job.status == "retrying" for job in place.jobs()):
            place.retry()
    assert (_best(place, 0, policy).rank, _size(place, 0, policy)) == (Rank.WITNESSED, 4)
    (before,) = place.anchors(tenant, policy)
    assert (before["log_proof"]["tree_size"], before["timestamp"]) == (4, None)
    place.grow()
    put_stamp(place.owner, authority, 5)
    assert _best(place, 0, policy).rank is Rank.WITNESSED, "of two checkpoints"
    assert _best(place, 4, policy).rank is Rank.TIMESTAMPED
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        for size in (6, 7):
            assert place.grow() == size
            place.stamp()
    found = _best(place, 0, policy)
    assert (found.rank, found.published.checkpoint.size) == (Rank.BOTH, 6), "the earliest"
    assert found.timestamp is not None
    assert len(found.cosignatures) == 2
    (anchor,) = place.anchors(tenant, policy)
    assert (anchor["log_proof"]["tree_size"], len(anchor["cosignatures"])) == (6, 2)
    assert b64decode(anchor["timestamp"]) == found.timestamp.response
    assert _size(place, 6, policy) == 7
    place.run("UPDATE checkpoint_timestamps SET response = '\\x00' WHERE size = 6")
    assert _size(place, 0, policy) == 7, "what does not hold is passed over"
    place.set(tsa_ca_file=())
    assert (_best(place, 0, policy).rank, _size(place, 0, policy)) == (Rank.WITNESSED, 4)


def _size(place: Place, index: int, policy: Policy | None) -> int:
    return _best(place, index, policy).published.checkpoint.size


def test_one_reader_chooses_for_every_leaf_in_any_order_what_each_alone_would_get(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    policy = witnessed.name("any")
    for round_ in range(4):
        place.grow(3)
        if round_ % 2:
            place.stamp()
    alone = {index: _size(place, index, policy) for index in range(15)}
    for order in (range(15), range(14, -1, -1), [3, 14, 0, 9, 9, 2, 12]):
        with place.database.across_tenants(snapshot=True) as session:
            last = publication.current(session)
            assert last is not None
            chooser = evidence.Chooser(session, last, policy)
            found = {index: chooser.best(index).published.checkpoint.size for index in order}
        assert found == {index: alone[index] for index in order}


def test_a_line_put_into_the_database_makes_no_quorum(witnessed: Witnessed) -> None:
    place = witnessed.place
    policy = witnessed.name("any")
    forged = Witness(witnessed.one.name)
    line = forged.cosign(place.world.published().checkpoint.text)
    forged_line = Signature(line.name, witnessed.one.vkey.key_hash, line.payload)
    place.run(
        "INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line, cosigned_at)"
        " VALUES (1, 3, :name, :hash, :line, now())",
        name=line.name,
        hash=witnessed.one.vkey.key_hash,
        line=str(forged_line),
    )
    assert _best(place, 0, policy).rank is Rank.LOG


def test_what_is_stored_and_does_not_hold_is_not_given_out(witnessed: Witnessed) -> None:
    place = witnessed.place
    policy = witnessed.name("any")
    place.stamp()
    one = witnessed.one
    place.run(
        "UPDATE checkpoint_cosignatures SET line = :line WHERE name = :name",
        name=one.name,
        line=str(Signature(one.name, one.vkey.key_hash, bytes(72))),
    )
    found = _best(place, 0, policy)
    assert found.rank is Rank.WITNESSED
    (line,) = found.cosignatures
    assert Signature.parse(line).name == witnessed.two.name
    place.run("UPDATE checkpoint_cosignatures SET line = 'x'")
    assert _best(place, 0, policy).cosignatures == ()
    assert place.grow() == 4
    place.run(
        "UPDATE checkpoints SET note = set_byte(note, length(note) - 9,"
        " CASE get_byte(note, length(note) - 9) WHEN 65 THEN 66 ELSE 65 END) WHERE size = 3"
    )
    assert (_size(place, 0, policy), _best(place, 0, policy).rank) == (4, Rank.LOG)


def test_a_line_put_into_the_database_is_replaced_by_what_the_witness_says(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    put_lines(witnessed, witnessed.one, 2)
    with structlog.testing.capture_logs() as lines:
        place.stamp()
    assert _best(place, 0, place.runtime.settings.witness_policy).rank is Rank.WITNESSED
    (line,) = [each for each in lines if each["event"] == "cosignature_replaced"]
    assert (line["generation"], line["size"], line["witness"]) == (1, 3, witnessed.one.name)
    assert place.troubles() == []


def test_lines_put_into_the_database_do_not_hide_that_a_witness_signs_nothing(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    place.stamp()
    for _ in range(2):
        place.grow()
    put_lines(witnessed, witnessed.one, 3)
    place.age()
    witnessed.one.faults = [lambda _: http_answer(503)]
    asked = witnessed.one.asked
    place.stamp()
    (trouble,) = place.troubles()
    assert trouble.part == witnessed.part(witnessed.one)
    with place.owner.connect() as connection:
        query = "SELECT published_at FROM checkpoints WHERE size = 4"
        assert trouble.since == connection.scalar(text(query)), "the first it did not cosign"
    place.retry()
    assert place.troubles() == []
    assert witnessed.one.asked == asked + 2, "from where it really is: there is no conflict"


def put_lines(witnessed: Witnessed, witness: Witness, beyond: int) -> None:
    """Put lines in a witness's name, by another key, on all checkpoints larger than `beyond`."""
    name, key_hash = witness.name, witness.vkey.key_hash
    witnessed.place.run(
        "INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line, cosigned_at)"
        " SELECT generation, size, :name, :hash, :line, now() FROM checkpoints"
        "  WHERE size > :beyond",
        name=name,
        hash=key_hash,
        line=str(Signature(name, key_hash, bytes(72))),
        beyond=beyond,
    )


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
    stamp_checkpoint.run(place.runtime)
    workers = [threading.Thread(target=place.work) for _ in range(2)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert witnessed.stored() == [(3, "one"), (3, "two")]
