"""Answers of a witness that are no cosignature: not stored, and no alarm."""

from collections.abc import Callable

from app.core.anchoring.evidence import Rank
from app.ledger.notes import Signature, VerifierKey, key_hash
from app.ledger.policy import Policy
from tests.support.evidence.witnessed import Witnessed
from tests.support.evidence.witnesses import SIZE, Witness
from tests.support.servers.receivers import http_answer

ML_DSA_44 = 0x06


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
    place.age()
    for name, body in NO_COSIGNATURES.items():
        sent = http_answer(200, body(one, said).encode())
        one.faults = [lambda _, sent=sent: sent]  # type: ignore[misc]
        place.stamp()
        assert (3, "one") not in witnessed.stored(), name
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
    other = VerifierKey(name, key_hash(name, ML_DSA_44, public), ML_DSA_44, public)
    witnessed.name(extra=f"witness quantum {other}")
    said = place.world.published().checkpoint.text
    lines = [one.cosign(said), Signature(name, other.key_hash, bytes(2428)), one.cosign(said)]
    one.faults = [lambda _: http_answer(200, "".join(f"{line}\n" for line in lines).encode())]
    place.stamp()
    assert witnessed.stored() == [(3, "one"), (3, "one"), (3, "two")]
    query = "SELECT cosigned_at FROM checkpoint_cosignatures WHERE key_hash = :hash"
    assert place.scalar(query, hash=other.key_hash) is None
    alone = Policy.parse(f"witness quantum {other}\nquorum quantum\n".encode())
    assert place.chosen(0, alone).rank is Rank.LOG
