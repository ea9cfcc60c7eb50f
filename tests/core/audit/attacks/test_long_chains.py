"""Verifying a long chain ends at the first break; leaves far back are for the daily run."""

import pytest

from app.core.verification import anchored_heads
from tests.core.audit.attacks.forging import ANCHORS
from tests.support.evidence.chains import Place, daily_run, standing


def test_a_break_at_the_beginning_of_a_long_chain_leaves_the_rest_unread(place: Place) -> None:
    place.owner.lengthen(20_000)
    assert place.verify()["entries"] == 20_012
    place.owner.rewrite(3, action="other")
    assert place.broken() == (4, "bad_link")
    place.owner.forge_tail(3, 12)
    assert place.broken() == (5, "other_head")


def test_a_chain_cut_behind_the_newest_leaves_is_found_by_the_daily_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was said of it since, only another daily run calls it whole again."""
    monkeypatch.setattr(anchored_heads, "LOOK_BACK", 256)
    place.world.grow(600)
    place.owner.cut(4)
    place.owner(f"DELETE FROM {ANCHORS}")
    assert place.verify()["anchored_through"] is None
    assert daily_run(place)["broken"] == 1
    assert len(place.events()) == 1
    assert place.verify()
    assert standing(place) == "1 broken"


def test_an_anchor_far_back_is_proven_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchored_heads, "LOOK_BACK", 256)
    place.world.grow(600)
    report = place.verify()
    assert (report["anchored_through"], report["anchors"]["checked"]) == (9, 2)
    place.owner.forge_tail(4, 12)
    assert place.broken() == (5, "other_head")
    place.owner(
        "UPDATE audit_anchors AS a SET hash = e.hash FROM audit_entries AS e"
        " WHERE a.tenant_id = :tenant AND e.tenant_id = a.tenant_id AND e.seq = a.seq"
    )
    assert place.broken() == (5, "anchor_not_in_log")
