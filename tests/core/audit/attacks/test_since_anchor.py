"""Verification from the newest anchor on reads only what came after, and finds changes there."""

import pytest

from app.ledger.hash_chain import Head
from tests.core.audit.attacks.forging import (
    ANCHORS,
    ENTRIES,
    Attack,
    forge_anchors_and_leaves,
    forge_with_anchors,
    sql,
)
from tests.support.evidence.chains import Owner, Place


def test_from_the_newest_anchor_on_only_what_came_after_is_read(place: Place) -> None:
    place.owner.rewrite(3, action="other")
    report = place.verify(since_anchor=True)
    assert (report["status"], report["entries"]) == ("intact-since-anchor", 12)
    assert (report["since"]["seq"], report["unanchored_entries"]) == (9, 3)
    assert report["leaves_read_from"] <= report["since"]["leaf_index"] == 301
    assert place.broken()[0] == 4


def cut_to_an_older_anchor(_: Place, owner: Owner) -> None:
    owner.cut(6)
    owner(f"DELETE FROM {ANCHORS} AND seq = 9")


@pytest.mark.parametrize(
    ("attack", "found"),
    [
        (lambda _, owner: owner.rewrite(11, action="other"), (12, "bad_link")),
        (sql(f"DELETE FROM {ENTRIES} AND seq = 11"), (11, "missing")),
        (lambda _, owner: owner.forge_tail(4, 12), (5, "other_head")),
        (lambda _, owner: owner.cut(8), (9, "missing")),
        (forge_with_anchors, (5, "other_head")),
        (forge_anchors_and_leaves, (5, "other_head")),
        (sql(f"DELETE FROM {ANCHORS} AND seq = 9"), (9, "anchor_missing")),
        (cut_to_an_older_anchor, (7, "missing")),
        (
            sql(
                "UPDATE audit_anchors AS a SET leaf_hash = o.leaf_hash FROM audit_anchors AS o"
                " WHERE a.tenant_id = :tenant AND a.seq = 9"
                " AND o.tenant_id = a.tenant_id AND o.seq = 5"
            ),
            (9, "anchor_missing"),
        ),
    ],
)  # fmt: skip
def test_from_the_newest_anchor_on_what_was_done_behind_it_is_found(
    place: Place, attack: Attack, found: tuple[int, str]
) -> None:
    attack(place, place.owner)
    assert place.broken(since_anchor=True) == found


def test_without_an_anchor_everything_is_read(place: Place) -> None:
    place.owner(f"DELETE FROM {ANCHORS}")
    assert place.broken(since_anchor=True) == (5, "anchor_missing")


def test_a_kept_head_before_the_anchor_is_held_too(place: Place) -> None:
    assert place.verify(since_anchor=True, kept=Head(**place.verify()["head"]))
    assert place.broken(since_anchor=True, kept=Head(2, "0" * 64)) == (2, "other_head")
