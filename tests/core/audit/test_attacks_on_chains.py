"""What the database's owner does to a chain, its anchors, its switch and its name is found."""

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import structlog

from app.core import tenant_settings, tenants
from app.core.anchoring.anchors import AnchorReader
from app.core.audit import chain
from app.core.callers import SYSTEM, Caller, Role
from app.core.log.head_store import FileHead
from app.core.verification.verifier import Asked
from app.errors import AuditChainBroken
from app.ledger import leaves, merkle
from tests.core.audit.forging import (
    ANCHORS,
    ENTRIES,
    Attack,
    forge_anchors_and_leaves,
    forge_with_anchors,
    sql,
)
from tests.support.evidence.chains import Owner, Place, anchor, daily_run, standing
from tests.support.secrets import MASTER_KEYS

SALT = "UPDATE tenants SET chain_salt = sha256('') WHERE id = :tenant"
SET = "UPDATE audit_entries SET {} WHERE tenant_id = :tenant AND seq = 6"
RENUMBER = "UPDATE audit_entries SET seq = {} WHERE tenant_id = :tenant AND seq {}"
COPY = (
    f"INSERT INTO audit_entries SELECT tenant_id, {{}}, body, hash, action, at, actor, target,"
    f" outcome FROM {ENTRIES} AND seq = {{}}"
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
        "INSERT INTO audit_entries SELECT :tenant, seq, body, hash, action, at, actor, target,"
        " outcome FROM audit_entries WHERE tenant_id = :other",
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
        (sql(SET.format("body = '', hash = sha256('')")), (6, "not_json")),
        *(
            (sql(SET.format(change)), (6, "misfiled"))
            for change in (
                "action = 'harmless.thing'", "action = ''",
                "at = at - interval '1 year'", "at = 'infinity'",
                "actor = 'key_another'", "target = 'key_another'", "target = ''",
                "outcome = 'refused'", "outcome = NULL",
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


SWITCH = "UPDATE tenants SET anchoring_enabled = {} WHERE id = :tenant"


def change_setting(place: Place, *, on: bool) -> int:
    """Have the tenant's owner switch anchoring; return the number of the entry that says so."""
    with place.world.database.transaction(place.tenant_id) as session:
        caller = Caller(place.tenant_id, UUID(int=1), Role.ADMIN, None, "a request")
        tenant_settings.change(session, caller, {"anchoring_enabled": on})
    return int(place.owner.scalar("SELECT seq FROM audit_heads WHERE tenant_id = :tenant"))


@pytest.mark.parametrize("asked", [{}, {"full": True}, {"since_anchor": True}])
def test_anchoring_that_was_switched_off_in_the_database_is_found(
    place: Place, asked: dict[str, bool]
) -> None:
    place.owner(SWITCH.format("false"))
    assert place.broken(**asked) == (1, "other_setting")
    (told,) = map(json.loads, place.events())
    assert told["data"]["reason"] == "other_setting"
    assert "anchoring_enabled" in told["data"]["expected"]
    place.owner(SWITCH.format("true"))
    assert place.verify()["anchors"]["enabled"] is True
    assert standing(place) is None


def test_the_daily_run_finds_it_unasked(place: Place) -> None:
    place.owner(SWITCH.format("false"))
    assert daily_run(place)["broken"] == 1
    assert standing(place) == "1 broken"
    assert len(place.events()) == 1
    place.owner(SWITCH.format("true"))
    assert daily_run(place)["broken"] == 0
    assert standing(place) is None


@pytest.mark.parametrize("on", [False, True])
def test_the_chain_s_last_word_on_it_counts(place: Place, *, on: bool) -> None:
    change_setting(place, on=False)
    if on:
        change_setting(place, on=True)
    with place.world.database.transaction(place.tenant_id) as session:
        caller = Caller(place.tenant_id, UUID(int=1), Role.ADMIN, None, "a request")
        tenant_settings.change(session, caller, {"bundle_retention_days": 7})
    anchors = place.verify()["anchors"]
    assert (anchors["enabled"], anchors["disabled_since"] is None) == (on, on)
    place.owner(SWITCH.format(not on))
    assert place.broken() == (14 if on else 13, "other_setting")


def test_a_setting_of_that_name_within_another_s_text_says_nothing(place: Place) -> None:
    with place.world.database.transaction(place.tenant_id) as session:
        chain.append(
            session,
            place.tenant_id,
            SYSTEM,
            "settings.update",
            target=("tenant", '"anchoring_enabled":{"new":false'),
            details={"note": {"new": '"anchoring_enabled":{"new":false'}},
        )
    assert place.verify()["anchors"]["enabled"] is True


def rename(place: Place, owner: Owner) -> None:
    """Write everything anew, forget the anchors, and give the chain a name the log never heard."""
    owner.forge_tail(1, 12)
    owner(
        f"DELETE FROM {ANCHORS}",
        "UPDATE tenants SET chain_salt = sha256(chain_salt) WHERE id = :tenant",
    )


@pytest.mark.parametrize("asked", [Asked(), Asked(full=True), Asked(since_anchor=True)])
def test_a_chain_under_another_name_is_broken_and_never_anchored(
    place: Place, asked: Asked
) -> None:
    rename(place, place.owner)
    with pytest.raises(AuditChainBroken) as caught:
        place.verifier.verify(place.tenant_id, asked)
    assert (caught.value.report["seq"], caught.value.report["reason"]) == (1, "other_chain")
    with structlog.testing.capture_logs() as lines:
        place.anchor()
    assert [(line["event"], line["log_level"]) for line in lines[:1]] == [
        ("audit_chain_not_sealed", "critical")
    ]
    assert place.owner.scalar(f"SELECT count(*) FROM {ANCHORS}") == 0
    assert place.broken() == (1, "other_chain")


@pytest.mark.parametrize(
    "change",
    [
        "chain_seal = NULL",
        "chain_salt = NULL",
        "chain_salt = NULL, chain_seal = NULL",
        "chain_seal = set_byte(chain_seal, 30, get_byte(chain_seal, 30) # 1)",
        "chain_seal = ''",
        "(chain_salt, chain_seal) = (SELECT chain_salt, chain_seal FROM tenants WHERE id = :other)",
    ],
)
def test_a_name_counts_only_with_its_tenant_s_own_seal(place: Place, change: str) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    place.owner(f"UPDATE tenants SET {change} WHERE id = :tenant AND id <> :other", other=other)
    assert place.broken() == (1, "other_chain")
    with (
        pytest.raises(AuditChainBroken, match="sealed"),
        place.world.database.transaction(place.tenant_id, snapshot=True) as session,
    ):
        AnchorReader(session, place.tenant_id, None, MASTER_KEYS)


def test_a_name_that_a_caller_kept_is_held_against_the_chain_s(place: Place) -> None:
    name = place.verify()["chain"]
    salt = place.owner.scalar("SELECT chain_salt FROM tenants WHERE id = :tenant")
    assert name == leaves.chain_name(salt).hex()
    assert place.verify(chain=name)["chain"] == name
    assert place.broken(chain="0" * 64) == (1, "other_chain")
    assert place.events() == []


def test_a_head_outside_is_called_kept_only_where_one_was_compared(
    place: Place, tmp_path: Path
) -> None:
    assert place.verify()["head_store"] == "kept"
    place.owner("UPDATE log_generations SET head_kept = false")
    nowhere = replace(place.verifier, head=FileHead(tmp_path / "nothing"))
    assert nowhere.verify(place.tenant_id, Asked())["head_store"] == "empty"
