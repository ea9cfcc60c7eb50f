"""Every change of what was anchored is found at its place, and what is pending breaks nothing."""

import pytest

from app.ledger import leaves, merkle
from tests.core.audit.attacks.forging import (
    ANCHORS,
    ENTRIES,
    Attack,
    forge_anchors_and_leaves,
    forge_with_anchors,
    sql,
)
from tests.support.evidence.chains import Owner, Place, anchor

SALT = "UPDATE tenants SET chain_salt = sha256('') WHERE id = :tenant"
SET_AT = "SET at = 'infinity' WHERE"


def forge_with_new_anchors(place: Place, owner: Owner) -> None:
    """Write the chain anew, drop its anchors, and have the service anchor what is there now."""
    owner.forge_tail(4, 12)
    owner(f"DELETE FROM {ANCHORS}")
    place.anchor()


def empty(_: Place, owner: Owner) -> None:
    owner.cut(1)
    owner(f"DELETE FROM {ENTRIES}")


def begin_anew(place: Place, owner: Owner) -> None:
    """Cut the chain to its first entry and let the service append others in place of the rest."""
    owner.cut(1)
    place.append(14)


@pytest.mark.parametrize(
    ("attack", "found"),
    [
        (sql(f"DELETE FROM {ENTRIES} AND seq = 7"), (7, "missing")),
        (sql(f"DELETE FROM {ENTRIES} AND seq = 12"), (12, "missing")),
        (lambda _, owner: owner.rewrite(7, action="other"), (8, "bad_link")),
        (lambda _, owner: owner.rewrite(9, action="other"), (9, "other_head")),
        (lambda _, owner: owner.forge_tail(4, 12), (5, "other_head")),
        (lambda _, owner: owner.forge_tail(7, 12), (9, "other_head")),
        (lambda _, owner: owner.cut(8), (9, "missing")),
        (lambda _, owner: owner.cut(4), (5, "missing")),
        (empty, (1, "missing")),
        (begin_anew, (5, "other_head")),
        (forge_with_anchors, (5, "other_head")),
        (forge_with_new_anchors, (5, "other_head")),
        (forge_anchors_and_leaves, (5, "other_head")),
        (sql("DELETE FROM audit_heads WHERE tenant_id = :tenant"), (1, "missing")),
        (sql(f"DELETE FROM {ANCHORS} AND seq = 9"), (9, "anchor_missing")),
        (sql(f"DELETE FROM {ANCHORS}"), (5, "anchor_missing")),
        (sql(SALT), (1, "other_chain")),
        (
            sql(
                "INSERT INTO audit_anchors"
                f" SELECT tenant_id, 7, hash, at, sha256(hash) FROM {ENTRIES} AND seq = 7"
            ),
            (7, "anchor_not_in_log"),
        ),
        (
            sql(
                "DELETE FROM log_leaves WHERE leaf_hash ="
                f" (SELECT leaf_hash FROM {ANCHORS} AND seq = 9)"
            ),
            (9, "leaf_missing"),
        ),
        (
            sql(
                "UPDATE log_leaves SET leaf_index = 9999 WHERE leaf_hash ="
                f" (SELECT leaf_hash FROM {ANCHORS} AND seq = 9)"
            ),
            (9, "leaf_missing"),
        ),
        (
            sql(
                "UPDATE log_leaves SET leaf_index = NULL, generation = NULL WHERE leaf_hash ="
                f" (SELECT leaf_hash FROM {ANCHORS} AND seq = 9)"
            ),
            (9, "leaf_missing"),
        ),
        (sql(f"UPDATE {ENTRIES.replace('WHERE', SET_AT)} AND seq = 6"), (6, "misfiled")),
        (
            sql(
                "INSERT INTO audit_entries"
                f" SELECT tenant_id, -1, body, hash, action, at FROM {ENTRIES} AND seq = 1"
            ),
            (1, "out_of_order"),
        ),
    ],
)  # fmt: skip
def test_every_change_of_what_was_anchored_is_found_at_its_place(
    place: Place, attack: Attack, found: tuple[int, str]
) -> None:
    attack(place, place.owner)
    assert place.broken() == found


def test_a_forged_chain_behind_the_newest_anchor_is_counted_as_such_and_found_by_a_kept_head(
    place: Place,
) -> None:
    kept = place.head()
    place.owner.forge_tail(10, 12)
    report = place.verify()
    assert (report["anchored_through"], report["unanchored_entries"]) == (9, 3)
    assert place.broken(kept=kept) == (12, "other_head")
    place.anchor()
    assert place.verify()["unanchored_entries"] == 0


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"audit-head","seq":%b,"chain":"%%b"}' % (b"9" * 5000),
        b'{"chain":"%b","seq":99999999999999999999,"type":"audit-head"}',
        b'%b"type":"audit-head"' + b"[" * 5000,
        b'{"at":"2026-01-31T12:00:00.123456Z","chain":"%b","hash":"'
        + b"0" * 64
        + b'","seq":9007199254740993,"type":"audit-head"}',
    ],
)
def test_a_hostile_leaf_that_names_the_chain_anchors_nothing(place: Place, data: bytes) -> None:
    salt = place.owner.scalar("SELECT chain_salt FROM tenants WHERE id = :tenant")
    name = leaves.chain_name(salt).hex().encode()
    said = data.replace(b"%b", name)
    place.owner(
        "INSERT INTO log_leaves (id, leaf_hash, data) VALUES (gen_random_uuid(), :hash, :data)",
        hash=merkle.leaf_hash(said),
        data=said,
    )
    place.world.sequencer().run()
    assert place.verify()["status"] == "intact"


def test_a_false_head_that_the_owner_had_anchored_breaks_the_chain(place: Place) -> None:
    salt = place.owner.scalar("SELECT chain_salt FROM tenants WHERE id = :tenant")
    head = leaves.AuditHead(
        leaves.chain_name(salt), 2**53 - 1, b"0" * 32, "2026-01-31T12:00:00.123456Z"
    )
    place.owner(
        "INSERT INTO log_leaves (id, leaf_hash, data) VALUES (gen_random_uuid(), :hash, :data)",
        hash=merkle.leaf_hash(head.data),
        data=head.data,
    )
    place.world.sequencer().run()
    assert place.broken() == (13, "missing")


def test_what_is_anchored_and_not_yet_published_is_pending_and_breaks_nothing(place: Place) -> None:
    anchor(place.world)
    report = place.verify()
    assert report["anchors"]["checked"] == 2
    assert (report["anchors"]["pending"], report["anchored_through"]) == (1, 9)
    place.world.sequencer().run()
    report = place.verify()
    assert (report["anchors"]["pending"], report["anchored_through"]) == (0, 12)


def test_a_pending_anchor_that_contradicts_the_chain_is_found(place: Place) -> None:
    anchor(place.world)
    place.owner.forge_tail(10, 12)
    assert place.broken() == (12, "other_head")
