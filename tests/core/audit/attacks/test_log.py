"""Every change of the log that holds the anchors is found, as is an older database."""

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from app.core.log.head.head_store import HeadStore
from app.errors import LogDamaged, LogHeadLost, LogRolledBack
from app.ledger.notes import Signer
from tests.core.audit.attacks.forging import Attack, sql
from tests.support.evidence.chains import FLIP_BUNDLES, Owner, Place, anchor, daily_run, standing

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
