"""The audit chain attacked by the database's owner, who can change everything in it.

The victim has twelve entries; 5 and 9 are anchored. What cannot be rewritten is the log as it was
published, its head outside, and a head that a caller kept.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy.orm import Session

from app.core import tenant_settings, tenants
from app.core.anchoring.anchors import AnchorReader
from app.core.audit import chain, chain_identity
from app.core.callers import SYSTEM, Caller, Role
from app.core.log import publication
from app.core.log.head.head_store import FileHead, HeadStore
from app.core.log.publication import Published
from app.core.log.recovery import succession
from app.core.verification import time_budget
from app.core.verification.checks import stored_chain
from app.core.verification.time_budget import Deadline, TakesLonger
from app.core.verification.verifier import Asked
from app.errors import AuditChainBroken, LogDamaged, LogHeadLost, LogRolledBack
from app.ledger import leaves, merkle
from app.ledger.hash_chain import Head
from app.ledger.notes import Signer
from tests.support.evidence.chains import Owner, Place, anchor, daily_run, standing
from tests.support.secrets import MASTER_KEYS

Attack = Callable[[Place, Owner], object]

WHOLE_LOG = ("checkpoints", "log_generations", "log_tiles", "log_leaves")
DUMPED = (
    "audit_entries",
    "audit_heads",
    "audit_anchors",
    "log_leaves",
    "log_tiles",
    "checkpoints",
)


def sql(*statements: str) -> Attack:
    return lambda _, owner: owner(*statements)


SALT = "UPDATE tenants SET chain_salt = sha256('') WHERE id = :tenant"
ENTRIES = "audit_entries WHERE tenant_id = :tenant"
SET_AT = "SET at = 'infinity' WHERE"
TILES = "log_tiles WHERE level = -1"
ANCHORS = "audit_anchors WHERE tenant_id = :tenant"


def forge_with_anchors(_: Place, owner: Owner) -> None:
    """Write chain and anchors anew, hashes and all."""
    owner.forge_tail(4, 12)
    owner(
        "UPDATE audit_anchors AS a SET hash = e.hash FROM audit_entries AS e"
        " WHERE a.tenant_id = :tenant AND e.tenant_id = a.tenant_id AND e.seq = a.seq"
    )


def forge_with_new_anchors(place: Place, owner: Owner) -> None:
    """Write the chain anew, drop its anchors, and have the service anchor what is there now."""
    owner.forge_tail(4, 12)
    owner(f"DELETE FROM {ANCHORS}")
    place.anchor()


def forge_anchors_and_leaves(_: Place, owner: Owner) -> None:
    """Write everything anew that a table has: chain, anchors, and the anchors' leaves."""
    owner.forge_tail(4, 12)
    salt = owner.scalar("SELECT chain_salt FROM tenants WHERE id = :tenant")
    for seq in (5, 9):
        digest = owner.scalar(f"SELECT hash FROM {ENTRIES} AND seq = :seq", seq=seq)
        at = "2026-01-31T12:00:00.123456Z"
        data = leaves.AuditHead(leaves.chain_name(salt), seq, digest, at).data
        owner(
            "UPDATE log_leaves SET data = :data, leaf_hash = :new WHERE leaf_hash ="
            f" (SELECT leaf_hash FROM {ANCHORS} AND seq = :seq)",
            f"UPDATE {ANCHORS.replace(' WHERE', ' SET hash = :hash, leaf_hash = :new WHERE')}"
            " AND seq = :seq",
            data=data,
            new=merkle.leaf_hash(data),
            hash=digest,
            seq=seq,
        )


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


def swap_bundles(_: Place, owner: Owner) -> None:
    owner(
        "UPDATE log_tiles SET number = 1 - number + 100 WHERE level = -1",
        "UPDATE log_tiles SET number = number - 100 WHERE level = -1",
    )


def other_public_key(_: Place, owner: Owner) -> None:
    owner("UPDATE signing_keys SET public_key = sha256(public_key) WHERE purpose = 'log'")


def forge_checkpoint(place: Place, owner: Owner) -> None:
    """Sign the tree with a key of the owner's own, and put its public half into the table."""
    key = Ed25519PrivateKey.generate()
    last = place.world.published().checkpoint
    owner(
        "UPDATE checkpoints SET note = :note WHERE size = :size",
        "UPDATE signing_keys SET public_key = :public WHERE purpose = 'log'",
        note=bytes(last.sign(Signer(last.origin, key))),
        size=last.size,
        public=key.public_key().public_bytes_raw(),
    )


def set_bundle(data: str, number: int = 1) -> Attack:
    return sql(f"UPDATE log_tiles SET data = {data} WHERE level = -1 AND number = {number}")


def drop_leaf_from_bundle(_: Place, owner: Owner) -> None:
    """Overwrite a head in the first entry bundle by other bytes of the same length."""
    owner(
        "UPDATE log_tiles SET data = set_byte(data, 20, get_byte(data, 20) # 1)"
        " WHERE level = -1 AND number = 0"
    )


@pytest.mark.parametrize(
    ("attack", "error", "said"),
    [
        (drop_leaf_from_bundle, LogDamaged, "tile/entries/000"),
        (swap_bundles, LogDamaged, "tile/entries/000"),
        (sql(f"DELETE FROM {TILES} AND number = 1"), LogDamaged, "tile/entries/001"),
        (set_bundle("data || data", 0), LogDamaged, "tile/entries/000"),
        (set_bundle("''"), LogDamaged, "tile/entries/001"),
        (set_bundle("repeat('x', 2000000)::bytea"), LogDamaged, "tile/entries/001"),
        (sql("UPDATE checkpoints SET note = '' WHERE note IS NOT NULL"), LogDamaged, "signed"),
        (forge_checkpoint, LogDamaged, "not one that the log signed"),
        (sql("DELETE FROM checkpoints WHERE size > 200"), LogDamaged, "checkpoint is missing"),
        (sql("DELETE FROM checkpoints"), LogDamaged, "checkpoint"),
        (sql(*map("DELETE FROM {}".format, WHOLE_LOG)), LogRolledBack, "no log"),
    ],
)  # fmt: skip
def test_every_change_of_the_log_is_found(
    place: Place, attack: Attack, error: type[Exception], said: str
) -> None:
    attack(place, place.owner)
    with pytest.raises(error, match=said):
        place.verify()


def test_another_public_key_in_the_table_verifies_nothing(place: Place) -> None:
    other_public_key(place, place.owner)
    assert place.verify()["status"] == "intact"


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


def test_an_older_database_is_named_as_such(place: Place) -> None:
    for table in DUMPED:
        place.owner(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")
    place.append()
    place.anchor()
    for table in DUMPED:
        place.owner(f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM kept_{table}")
    place.owner(*(f"DROP TABLE kept_{table}" for table in DUMPED))
    for asked in ({}, {"since_anchor": True}):
        with pytest.raises(LogRolledBack):
            place.verify(**asked)


def test_a_log_whose_head_is_gone_is_not_called_intact(place: Place) -> None:
    assert place.world.store is not None
    Path(place.world.store._path).unlink()  # type: ignore[attr-defined]
    place.owner("UPDATE log_generations SET head_kept = true")
    with pytest.raises(LogHeadLost):
        place.verify()


class Late:
    """A head store whose first head is kept just after it was looked for."""

    def __init__(self, store: HeadStore | None) -> None:
        assert store is not None
        self._store = store
        self._is_kept = False

    def read(self) -> bytes | None:
        before, self._is_kept = self._is_kept, True
        return self._store.read() if before else None

    def swap(self, old: bytes | None, new: bytes) -> bool:
        return self._store.swap(old, new)


def test_a_head_that_is_kept_while_it_is_looked_for_is_no_alarm(place: Place) -> None:
    store = place.world.store
    late = replace(place, verifier=replace(place.verifier, head=Late(store)))
    assert late.verify()["status"] == "intact"
    late = replace(place, verifier=replace(place.verifier, head=Late(store)))
    assert daily_run(late)["log"] == "intact"
    anchor(place.world)
    place.world.keeper(head=Late(store)).run()
    assert place.verify()["unanchored_entries"] == 0
    assert standing(place) is None


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
    place.world.keeper().run()
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
    place.world.keeper().run()
    assert place.broken() == (13, "missing")


def test_what_is_anchored_and_not_yet_published_is_pending_and_breaks_nothing(place: Place) -> None:
    anchor(place.world)
    report = place.verify()
    assert report["anchors"]["checked"] == 2
    assert (report["anchors"]["pending"], report["anchored_through"]) == (1, 9)
    place.world.keeper().run()
    report = place.verify()
    assert (report["anchors"]["pending"], report["anchored_through"]) == (0, 12)


def test_a_pending_anchor_that_contradicts_the_chain_is_found(place: Place) -> None:
    anchor(place.world)
    place.owner.forge_tail(10, 12)
    assert place.broken() == (12, "other_head")


def test_a_break_at_the_beginning_of_a_long_chain_leaves_the_rest_unread(place: Place) -> None:
    place.owner.lengthen(20_000)
    assert place.verify()["entries"] == 20_012
    place.owner.rewrite(3, action="other")
    assert place.broken() == (4, "bad_link")
    place.owner.forge_tail(3, 12)
    assert place.broken() == (5, "other_head")


def test_a_long_chain_is_left_in_the_middle_when_the_time_is_over(place: Place) -> None:
    place.owner.lengthen(5_000)
    with place.world.database.transaction(place.tenant_id, snapshot=True) as session:
        end = stored_chain.end(session, place.tenant_id)
        with pytest.raises(TakesLonger):
            stored_chain.check(session, place.tenant_id, end, Deadline(0))
    assert place.verify()["status"] == "intact"


def test_who_would_wait_for_more_than_some_seconds_is_told_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long they may wait: others need the processor too."""
    monkeypatch.setattr(time_budget, "_EXPECTED_AT_MOST", 0.004)
    for asked in (Asked(), Asked(since_anchor=True)):
        assert place.verifier.verify(place.tenant_id, asked, seconds=60)
    place.owner.lengthen(300)
    for asked in (Asked(), Asked(since_anchor=True)):
        with pytest.raises(TakesLonger):
            place.verifier.verify(place.tenant_id, asked, seconds=60)


# The chain's name


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


def test_only_who_has_neither_salt_nor_seal_gets_both(place: Place) -> None:
    database = place.world.database
    others = [tenants.create(database, MASTER_KEYS, "another")[0] for _ in range(2)]
    place.owner("UPDATE tenants SET chain_seal = NULL WHERE id = :tenant")
    place.owner(
        "UPDATE tenants SET chain_seal = NULL, chain_salt = NULL WHERE id = :other", other=others[0]
    )
    assert chain_identity.complete(database, MASTER_KEYS) == 1
    assert chain_identity.complete(database, MASTER_KEYS) == 0
    for other in others:
        assert place.verifier.verify(other, Asked())["entries"] == 2
    assert place.broken() == (1, "other_chain")


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


# From the newest anchor on


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
        (lambda _, owner: owner.forge_tail(4, 12), (9, "other_head")),
        (lambda _, owner: owner.cut(8), (9, "missing")),
        (forge_with_anchors, (9, "anchor_not_in_log")),
        (forge_anchors_and_leaves, (9, "anchor_not_in_log")),
        (sql(f"DELETE FROM {ANCHORS} AND seq = 9"), (9, "anchor_missing")),
        (cut_to_an_older_anchor, (7, "missing")),
        (
            sql(
                "UPDATE audit_anchors AS a SET leaf_hash = o.leaf_hash FROM audit_anchors AS o"
                " WHERE a.tenant_id = :tenant AND a.seq = 9"
                " AND o.tenant_id = a.tenant_id AND o.seq = 5"
            ),
            (9, "anchor_not_in_log"),
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


# Successors


def test_a_successor_holds_what_the_database_still_had(place: Place) -> None:
    keeper = place.world.keeper()
    succession.succeed(keeper, place.world.master_keys, force=True)
    report = place.verify()
    assert report["anchored_through"] == 9
    size = report["log"]["size"]
    assert report["log"]["predecessors"] == [
        {"origin": "records.test/log", "size": 302, "held": 302}
    ]
    assert size == 303
    place.owner.forge_tail(4, 13)
    assert place.broken() == (5, "other_head")


class Closed:
    """A gate that admits nothing: no witness knows the successor yet."""

    def admits(self, _session: Session, _candidate: Published) -> bool:
        return False


def test_until_a_successor_publishes_the_log_before_holds_the_chains(place: Place) -> None:
    keeper = place.world.keeper(gate=Closed())
    succession.succeed(keeper, place.world.master_keys, force=True)
    report = place.verify()
    assert (report["log"]["origin"], report["log"]["size"]) == ("records.test/log", 302)
    assert report["anchored_through"] == 9
    place.owner.forge_tail(4, 13)
    assert place.broken() == (5, "other_head")
    assert daily_run(place)["broken"] == 1
    assert standing(place) == "1 broken"


def test_a_successor_that_the_database_s_owner_begins_is_never_signed(place: Place) -> None:
    last = publication_text(place)
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
        place.world.keeper().run()
    assert place.owner.scalar("SELECT note FROM checkpoints WHERE generation = 2") is None
    with pytest.raises(LogDamaged, match="no successor"):
        place.verify()


def test_a_successor_cannot_be_given_another_past(place: Place) -> None:
    succession.succeed(place.world.keeper(), place.world.master_keys, force=True)
    place.owner("UPDATE log_generations SET predecessor = replace(predecessor, '302', '7')")
    with pytest.raises(LogDamaged, match="no successor"):
        place.verify()


def publication_text(place: Place) -> str:
    """Return what the log published last, as its successor repeats it."""
    with place.world.database.across_tenants() as session:
        last = publication.current(session)
    assert last is not None
    return last.checkpoint.text


# Whether the chain is anchored

SWITCH = "UPDATE tenants SET anchoring_enabled = {} WHERE id = :tenant"


def change_setting(place: Place, *, on: bool) -> int:
    """Have the tenant's owner switch anchoring; return the number of the entry that says so."""
    with place.world.database.transaction(place.tenant_id) as session:
        caller = Caller(place.tenant_id, UUID(int=1), Role.ADMIN, None, "a request")
        tenant_settings.change(session, caller, {"anchoring_enabled": on})
    return int(place.owner.scalar("SELECT seq FROM audit_heads WHERE tenant_id = :tenant"))


@pytest.mark.parametrize("asked", [{}, {"full": True}, {"since_anchor": True}])
def test_whoever_stops_the_anchoring_in_the_database_is_found(
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
