"""What is done to the log, a long chain or a successor is found."""

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.core.log import succession
from app.core.log.head_store import HeadStore
from app.core.verification import anchored_heads
from app.errors import LogDamaged, LogHeadLost, LogRolledBack
from app.ledger import merkle
from app.ledger.hash_chain import Head
from app.ledger.notes import Signer
from tests.core.audit.forging import (
    ANCHORS,
    ENTRIES,
    Attack,
    forge_anchors_and_leaves,
    forge_with_anchors,
    sql,
)
from tests.support.evidence.chains import FLIP_BUNDLES, Owner, Place, anchor, daily_run, standing
from tests.support.evidence.logs import Closed

WHOLE_LOG = ("checkpoints", "log_generations", "log_tiles", "log_leaves")
DUMPED = (
    "audit_entries",
    "audit_heads",
    "audit_anchors",
    "log_leaves",
    "log_tiles",
    "checkpoints",
)
TILES = "log_tiles WHERE level = -1"


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


@pytest.mark.parametrize(
    ("attack", "error", "said"),
    [
        (sql(FLIP_BUNDLES), LogDamaged, "tile/entries/000"),
        (
            sql(
                "UPDATE log_tiles SET number = 1 - number + 100 WHERE level = -1",
                "UPDATE log_tiles SET number = number - 100 WHERE level = -1",
            ),
            LogDamaged,
            "tile/entries/000",
        ),
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
    place.owner("UPDATE signing_keys SET public_key = sha256(public_key) WHERE purpose = 'log'")
    assert place.verify()["status"] == "intact"


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
    place.world.sequencer(head=Late(store)).run()
    assert place.verify()["unanchored_entries"] == 0
    assert standing(place) is None


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
