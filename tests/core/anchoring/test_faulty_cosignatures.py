"""Answers of a witness, and lines in the database, that are no cosignature."""

from collections.abc import Callable

import structlog

from app.core.anchoring.evidence import Rank
from app.ledger.notes import Signature, VerifierKey, key_hash
from app.ledger.policy import Policy
from tests.support.evidence.anchoring import Witnessed, put_line
from tests.support.evidence.witnesses import SIZE, Witness
from tests.support.servers.receivers import http_answer

UNKNOWN = 0x07
# What a witness sends, by itself and the text that it was shown.
NO_COSIGNATURES: dict[str, Callable[[Witness, str], str]] = {
    "by another key": lambda one, text: f"{Witness(one.name).cosign(text)}\n",
    "of another text": lambda one, text: f"{one.cosign(text.replace('3', '4', 1))}\n",
    "without a time": lambda one, text: f"{one.cosign(text, 0)}\n",
    "of the far future": lambda one, text: f"{one.cosign(text, 1 << 62)}\n",
    "without a newline": lambda one, text: str(one.cosign(text)),
    "a note": lambda one, text: f"{text}\n{one.cosign(text)}\n",
    "nothing": lambda _, __: "",
    "too many": lambda one, text: f"{one.cosign(text)}\n" * 101,
}


def test_a_line_that_is_no_cosignature_by_its_key_is_not_stored(witnessed: Witnessed) -> None:
    place, one = witnessed.place, witnessed.one
    said = place.world.published().checkpoint.text
    for name, body in NO_COSIGNATURES.items():
        sent = http_answer(200, body(one, said).encode())
        one.faults = [lambda _, sent=sent: sent]  # type: ignore[misc]
        place.stamp()
        assert (3, "one") not in witnessed.stored(), name
        place.overdue()
        (trouble,) = place.troubles()
        assert (trouble.part, trouble.alarm) == (witnessed.part(one), False), name
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
        one.faults = [lambda _, answer=answer: answer]  # type: ignore[misc]
        place.stamp()
        place.overdue()
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
    place.stamp()
    assert witnessed.one.asked == 4
    place.overdue()
    assert "another size each time" in place.troubles()[0].detail


def test_another_algorithm_is_kept_and_counts_for_nothing(witnessed: Witnessed) -> None:
    place = witnessed.place
    one = witnessed.one
    public = bytes(1312)
    name = one.name
    other = VerifierKey(name, key_hash(name, UNKNOWN, public), UNKNOWN, public)
    witnessed.name(extra=f"witness quantum {other}")
    said = place.world.published().checkpoint.text
    lines = [one.cosign(said), Signature(name, other.key_hash, bytes(2428)), one.cosign(said)]
    one.faults = [lambda _: http_answer(200, "".join(f"{line}\n" for line in lines).encode())]
    place.stamp()
    assert witnessed.stored() == [(3, "one"), (3, "one"), (3, "two")]
    alone = Policy.parse(f"witness quantum {other}\nquorum quantum\n".encode())
    assert place.chosen(0, alone).rank is Rank.LOG


def test_a_line_put_into_the_database_makes_no_quorum(witnessed: Witnessed) -> None:
    place = witnessed.place
    policy = witnessed.name("any")
    forged = Witness(witnessed.one.name).cosign(place.world.published().checkpoint.text)
    line = Signature(forged.name, witnessed.one.vkey.key_hash, forged.payload)
    put_line(place.owner, witnessed.one, line)
    assert place.chosen(0, policy).rank is Rank.LOG


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
    found = place.chosen(0, policy)
    assert found.rank is Rank.WITNESSED
    (line,) = found.cosignatures
    assert Signature.parse(line).name == witnessed.two.name
    place.run("UPDATE checkpoint_cosignatures SET line = 'x'")
    assert place.chosen(0, policy).cosignatures == ()
    assert place.grow() == 4
    place.run(
        "UPDATE checkpoints SET note = set_byte(note, length(note) - 9,"
        " CASE get_byte(note, length(note) - 9) WHEN 65 THEN 66 ELSE 65 END) WHERE size = 3"
    )
    assert (place.chosen_size(0, policy), place.chosen(0, policy).rank) == (4, Rank.LOG)


def test_a_line_put_into_the_database_is_replaced_by_what_the_witness_says(
    witnessed: Witnessed,
) -> None:
    place = witnessed.place
    put_lines(witnessed, witnessed.one, 2)
    with structlog.testing.capture_logs() as lines:
        place.stamp()
    assert place.chosen(0, place.runtime.settings.witness_policy).rank is Rank.WITNESSED
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
    witnessed.one.faults = [lambda _: http_answer(503)]
    asked = witnessed.one.asked
    place.stamp()
    place.overdue()
    (trouble,) = place.troubles()
    assert trouble.part == witnessed.part(witnessed.one)
    assert trouble.since == place.published_at(4), "the first it did not cosign"
    place.retry()
    assert place.troubles() == []
    assert witnessed.one.asked == asked + 2, "from where it really is: there is no conflict"


def put_lines(witnessed: Witnessed, witness: Witness, beyond: int) -> None:
    """Put lines in a witness's name, by another key, on all checkpoints larger than `beyond`."""
    name, key_hash = witness.name, witness.vkey.key_hash
    witnessed.place.run(
        "INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line)"
        " SELECT generation, size, :name, :hash, :line FROM checkpoints"
        "  WHERE size > :beyond",
        name=name,
        hash=key_hash,
        line=str(Signature(name, key_hash, bytes(72))),
        beyond=beyond,
    )
