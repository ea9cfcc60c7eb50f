"""Chains hold across a log and its successor, which cannot be given another past."""

import pytest

from app.core.log.recovery import succession
from app.errors import LogDamaged
from app.ledger import merkle
from tests.support.evidence.chains import Place, daily_run, standing
from tests.support.evidence.logs import Closed


def test_a_successor_holds_what_the_database_still_had(place: Place) -> None:
    sequencer = place.world.sequencer()
    succession.succeed(sequencer, place.world.master_keys, force=True)
    report = place.verify()
    assert report["anchored_through"] == 9
    size = report["log"]["size"]
    assert report["log"]["predecessors"] == [
        {"origin": "records.test/log", "size": 302, "held": 302}
    ]
    assert size == 303
    place.owner.forge_tail(4, 13)
    assert place.broken() == (5, "other_head")


def test_until_a_successor_publishes_the_log_before_holds_the_chains(place: Place) -> None:
    sequencer = place.world.sequencer(gate=Closed())
    succession.succeed(sequencer, place.world.master_keys, force=True)
    report = place.verify()
    assert (report["log"]["origin"], report["log"]["size"]) == ("records.test/log", 302)
    assert report["anchored_through"] == 9
    place.owner.forge_tail(4, 13)
    assert place.broken() == (5, "other_head")
    assert daily_run(place)["broken"] == 1
    assert standing(place) == "1 broken"


def test_a_successor_that_the_database_s_owner_begins_is_never_signed(place: Place) -> None:
    last = place.world.published().checkpoint.text
    place.owner(
        "INSERT INTO log_generations (generation, origin, key_id, predecessor)"
        " SELECT 2, origin || '/2', key_id, :last FROM log_generations",
        "INSERT INTO checkpoints (generation, size, root) VALUES (2, 0, :empty)",
        last=last,
        empty=merkle.EMPTY_ROOT,
    )
    place.owner.forge_tail(4, 12)
    place.owner("DELETE FROM audit_anchors WHERE tenant_id = :tenant")
    with pytest.raises(LogDamaged, match="no successor"):
        place.world.sequencer().run()
    assert place.owner.scalar("SELECT note FROM checkpoints WHERE generation = 2") is None
    with pytest.raises(LogDamaged, match="no successor"):
        place.verify()


def test_a_successor_cannot_be_given_another_past(place: Place) -> None:
    succession.succeed(place.world.sequencer(), place.world.master_keys, force=True)
    place.owner("UPDATE log_generations SET predecessor = replace(predecessor, '302', '7')")
    with pytest.raises(LogDamaged, match="no successor"):
        place.verify()
