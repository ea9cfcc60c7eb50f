"""Cosignature lines that the database's owner wrote prove nothing and hide nothing."""

import structlog

from app.core.anchoring.evidence import Rank
from app.ledger.notes import Signature
from tests.support.evidence.anchoring import put_line
from tests.support.evidence.witnessed import Witnessed
from tests.support.evidence.witnesses import Witness
from tests.support.servers.receivers import http_answer


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
    place.age()
    witnessed.one.faults = [lambda _: http_answer(503)]
    asked = witnessed.one.asked
    place.stamp()
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
        "INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line, cosigned_at)"
        " SELECT generation, size, :name, :hash, :line, now() FROM checkpoints"
        "  WHERE size > :beyond",
        name=name,
        hash=key_hash,
        line=str(Signature(name, key_hash, bytes(72))),
        beyond=beyond,
    )
