"""Every change of what was anchored is found at its place, and what is pending breaks nothing."""

import pytest

from app.core import tenants
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
from tests.support.secrets import MASTER_KEYS

SALT = "UPDATE tenants SET chain_salt = sha256('') WHERE id = :tenant"
SET = "UPDATE audit_entries SET {} WHERE tenant_id = :tenant AND seq = 6"
RENUMBER = "UPDATE audit_entries SET seq = {} WHERE tenant_id = :tenant AND seq {}"
COPY = (
    f"INSERT INTO audit_entries SELECT tenant_id, {{}}, body, hash, action, at FROM {ENTRIES}"
    " AND seq = {}"
)
NO_ENTRIES = f"DELETE FROM {ENTRIES}"
NO_HEAD = "DELETE FROM audit_heads WHERE tenant_id = :tenant"
EMPTY_HEAD = (
    "UPDATE audit_heads SET seq = 0, hash = decode(repeat('00', 32), 'hex')"
    " WHERE tenant_id = :tenant"
)


def forge_with_new_anchors(place: Place, owner: Owner) -> None:
    """Write the chain anew, drop its anchors, and have the service anchor what is there now."""
    owner.forge_tail(4, 12)
    owner(f"DELETE FROM {ANCHORS}")
    place.anchor()


def another_s_chain(place: Place, owner: Owner) -> None:
    """Put another tenant's chain in the place of this one."""
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    owner(
        NO_ENTRIES,
        "INSERT INTO audit_entries SELECT :tenant, seq, body, hash, action, at"
        " FROM audit_entries WHERE tenant_id = :other",
        "UPDATE audit_heads SET (seq, hash) = (SELECT seq, hash FROM audit_heads"
        " WHERE tenant_id = :other) WHERE tenant_id = :tenant",
        other=other,
    )


def begin_anew(place: Place, owner: Owner) -> None:
    """Cut the chain to its first entry and let the service append others in place of the rest."""
    owner.cut(1)
    place.append(14)


@pytest.mark.parametrize(
    ("attack", "found"),
    [
        *((sql(f"{NO_ENTRIES} AND seq = {seq}"), (seq, "missing")) for seq in (1, 7, 12)),
        (sql(f"{NO_ENTRIES} AND seq > 6"), (7, "missing")),
        *(
            (sql(NO_ENTRIES, *head), (1, "missing"))
            for head in ([], [NO_HEAD], [EMPTY_HEAD])
        ),
        (sql(NO_HEAD), (1, "missing")),
        (sql(SET.format("body = body || '\\x20'")), (6, "bad_hash")),
        *(
            (sql(SET.format(change)), (6, "misfiled"))
            for change in (
                "action = 'harmless.thing'", "action = ''", "body = '', hash = sha256('')",
                "at = at - interval '1 year'", "at = 'infinity'",
            )
        ),
        (
            sql(*(RENUMBER.format(*each) for each in ((-4, "= 4"), (4, "= 6"), (6, "= -4")))),
            (4, "wrong_seq"),
        ),
        (
            sql(
                *(RENUMBER.format(*each) for each in (("-seq - 1", "> 9"), ("-seq", "< 0"))),
                COPY.format(10, 9),
            ),
            (10, "wrong_seq"),
        ),
        (sql(COPY.format(13, 12)), (13, "beyond_end")),
        (sql(COPY.format(-1, 1)), (1, "out_of_order")),
        (another_s_chain, (1, "wrong_tenant")),
        (lambda _, owner: owner.rewrite(1, target={"type": "test", "id": "x"}), (2, "bad_link")),
        (lambda _, owner: owner.rewrite(7, action="other"), (8, "bad_link")),
        (lambda _, owner: owner.rewrite(12, details={}), (12, "other_head")),
        (lambda _, owner: owner.rewrite(9, action="other"), (9, "other_head")),
        (lambda _, owner: owner.forge_tail(4, 12), (5, "other_head")),
        (lambda _, owner: owner.forge_tail(7, 12), (9, "other_head")),
        (lambda _, owner: owner.cut(8), (9, "missing")),
        (lambda _, owner: owner.cut(4), (5, "missing")),
        (begin_anew, (5, "other_head")),
        (forge_with_anchors, (5, "other_head")),
        (forge_with_new_anchors, (5, "other_head")),
        (forge_anchors_and_leaves, (5, "other_head")),
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
        *(
            (sql(f"{change} WHERE leaf_hash = (SELECT leaf_hash FROM {ANCHORS} AND seq = 9)"),
             (9, "leaf_missing"))
            for change in (
                "DELETE FROM log_leaves",
                "UPDATE log_leaves SET leaf_index = 9999",
                "UPDATE log_leaves SET leaf_index = NULL, generation = NULL",
            )
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
    place.owner.cut(10)
    assert place.verify()["entries"] == 10
    assert place.broken(kept=kept) == (11, "missing")
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
