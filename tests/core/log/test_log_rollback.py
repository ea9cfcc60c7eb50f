"""A rolled-back database signs nothing, and a successor goes on from what was published."""

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from app.core import tenants
from app.core.log import generations, head_guard, proofs, publication, succession
from app.errors import (
    Conflict,
    LogDamaged,
    LogHalted,
    LogHeadLost,
    LogHeadUnavailable,
    LogRolledBack,
)
from app.ledger import leaves, merkle
from app.ledger.notes import Checkpoint
from app.lib.crypto.sealing import MasterKeys
from tests.support.evidence.logs import (
    FLIP,
    ORIGIN,
    TABLES,
    FailingDatabase,
    FailingHead,
    Killed,
    Owner,
    World,
    add_leaves,
    dump,
    killed,
    restore,
)
from tests.support.secrets import MASTER_KEYS


@pytest.mark.parametrize("more", [0, 50, 100, 150], ids=["as is", "shorter", "as long", "longer"])
def test_a_restored_database_signs_nothing_and_says_so(rolled_back: World, more: int) -> None:
    """Nor when it has grown anew."""
    add_leaves(rolled_back.database, more)
    for _ in range(2):
        said = rolled_back.halted(LogRolledBack)
        assert "Size 400" in said
        assert "log succeed" in said


def test_a_database_made_anew_beside_an_old_head_signs_nothing(world: World, owner: Owner) -> None:
    owner(*(f"DELETE FROM {table}" for table in ("log_leaves", *TABLES[2:], "log_generations")))
    add_leaves(world.database, 3)
    with pytest.raises(LogRolledBack):
        world.sequencer().run()
    with world.database.across_tenants() as session:
        assert publication.current(session) is None


def test_a_copy_and_its_original_never_both_sign(world: World, owner: Owner) -> None:
    """Both go on from 300; the head is one, and knows the first of them."""
    dump(owner)
    world.grow(1)
    world.check_consistency()
    restore(owner)
    add_leaves(world.database, 1)
    world.halted(LogRolledBack)


def test_a_newer_backup_put_back_goes_on_by_itself(rolled_back: World, owner: Owner) -> None:
    """The newest database was restored after all: nothing but the note of trouble is left."""
    assert rolled_back.store is not None
    newest = rolled_back.store.read()
    rolled_back.halted(LogRolledBack)
    with rolled_back.database.across_tenants() as session:
        kept = publication.current(session)
    assert kept is not None
    # As if the head had been of the database that is there.
    assert newest is not None
    assert rolled_back.store.swap(newest, kept.checkpoint.text.encode())
    rolled_back.sequencer().tick(float("inf"))
    assert generations.load_state(rolled_back.database).trouble is None


def test_a_head_that_is_gone_or_no_head_is_not_made_up(world: World, tmp_path: Path) -> None:
    (tmp_path / "head").write_text("nothing of the kind\n")
    with pytest.raises(LogHeadLost, match="no checkpoint"):
        world.sequencer().tick(float("inf"))
    (tmp_path / "head").unlink()
    add_leaves(world.database, 3)
    world.halted(LogHeadLost)
    assert succession.adopt(world.sequencer()).size == 300
    assert generations.load_state(world.database).trouble is None
    world.sequencer().run()
    world.prove()


def test_adopting_never_writes_over_a_head(rolled_back: World) -> None:
    with pytest.raises(Conflict, match="another"):
        succession.adopt(rolled_back.sequencer())


def test_a_checkpoint_that_the_tiles_do_not_have_is_never_adopted(
    world: World, owner: Owner, tmp_path: Path
) -> None:
    (tmp_path / "head").unlink()
    owner("UPDATE checkpoints SET root = sha256('other') WHERE size = 300")
    with pytest.raises(LogDamaged):
        succession.adopt(world.sequencer())
    assert world.store is not None
    assert world.store.read() is None
    world.rebuild(repair=True)
    assert succession.adopt(world.sequencer()).size == 300
    world.sequencer().tick(float("inf"))
    world.prove()


def test_an_older_head_of_the_same_log_is_moved_on(world: World, tmp_path: Path) -> None:
    old = (tmp_path / "head").read_bytes()
    world.grow(5)
    (tmp_path / "head").write_bytes(old)
    world.grow(5)
    world.prove()
    assert world.published().checkpoint.size == 310


def test_a_store_that_does_not_answer_is_noted_and_tried_again(world: World) -> None:
    add_leaves(world.database, 5)
    assert world.store is not None
    failing = FailingHead(world.store)
    failing.before_read = 1
    with pytest.raises(LogHeadUnavailable):
        world.sequencer(head=failing).run()
    assert generations.load_state(world.database).trouble == "log-head-unavailable"
    world.sequencer().run()
    assert generations.load_state(world.database).trouble is None


@pytest.mark.parametrize(
    "damage",
    [
        f"{FLIP} WHERE level = 0 AND number = 1",
        "UPDATE log_tiles SET data = substr(data, 1, 32) WHERE level = 0 AND number = 1",
        "DELETE FROM log_tiles WHERE level = -1 AND number = 1",
        "DELETE FROM log_tiles WHERE level = 1",
        "DELETE FROM checkpoints",
        "DELETE FROM checkpoints WHERE size = 300",
        "UPDATE log_leaves SET leaf_hash = sha256('other') WHERE leaf_index IS NULL",
    ],
)
def test_of_a_damaged_log_nothing_is_signed(world: World, owner: Owner, damage: str) -> None:
    add_leaves(world.database, 1)
    owner(damage)
    with pytest.raises(LogHalted):
        world.sequencer().run()
    assert generations.load_state(world.database).trouble is not None


def test_what_was_prepared_and_changed_is_not_signed(world: World, owner: Owner) -> None:
    add_leaves(world.database, 1)
    world.prepare()
    owner("UPDATE checkpoints SET root = sha256('other') WHERE size = 301")
    world.halted(LogDamaged)


def test_a_successor_names_what_was_published_last_and_has_every_leaf_that_is_left(
    rolled_back: World,
) -> None:
    old = rolled_back.published()
    hashes = rolled_back.hashes()
    more = add_leaves(rolled_back.database, 5)
    rolled_back.halted(LogRolledBack)
    new = succession.succeed(
        rolled_back.sequencer(), rolled_back.master_keys, force=False
    ).generation
    assert (new.number, new.origin) == (2, f"{ORIGIN}/2")
    assert new.key_id != old.generation.key_id
    assert new.predecessor is not None
    assert new.predecessor.size == 400
    rolled_back.prove()
    first = leaves.successor(new.predecessor)
    assert rolled_back.hashes() == [merkle.leaf_hash(first), *hashes, *more]
    assert generations.load_state(rolled_back.database) == generations.LogState(
        waits=False, trouble=None
    )
    with rolled_back.database.across_tenants() as session:
        for leaf in (hashes[0], more[-1]):
            assert proofs.of_leaf(session, proofs.newest(session), leaf)["tree_size"] == 306
        assert proofs.published(session, 1).note == old.note
    rolled_back.grow(300)
    rolled_back.prove()
    assert rolled_back.rebuild().first is None


@pytest.mark.parametrize("committed", [False, True], ids=["not committed", "committed"])
@pytest.mark.parametrize("at", range(4))
def test_a_successor_whose_making_was_killed_is_the_same_one(
    rolled_back: World, at: int, committed: bool
) -> None:
    database = FailingDatabase(rolled_back.database)
    database.at, database.committed = at, committed
    keys = rolled_back.master_keys
    assert killed(
        lambda: succession.succeed(rolled_back.sequencer(database=database), keys, force=False)
    )
    rolled_back.check_consistency()
    if at == 0:
        succession.succeed(rolled_back.sequencer(), keys, force=False)
    else:
        rolled_back.sequencer().run()
    rolled_back.prove()
    assert rolled_back.published().generation.origin == f"{ORIGIN}/2"
    assert rolled_back.published().checkpoint.size == 301


@pytest.mark.parametrize("moment", ["before_swap", "after_swap"])
def test_a_successor_whose_head_failed_is_finished_by_the_next_integration(
    rolled_back: World, moment: str
) -> None:
    assert rolled_back.store is not None
    head = FailingHead(rolled_back.store, Killed)
    setattr(head, moment, 1)
    with pytest.raises(Killed):
        succession.succeed(rolled_back.sequencer(head=head), rolled_back.master_keys, force=False)
    rolled_back.sequencer().tick(float("inf"))
    rolled_back.prove()
    assert rolled_back.published().checkpoint.origin == f"{ORIGIN}/2"


def test_a_second_restore_leads_to_a_third_log(rolled_back: World, owner: Owner) -> None:
    keys = rolled_back.master_keys
    succession.succeed(rolled_back.sequencer(), keys, force=False)
    rolled_back.check_consistency()
    restore(owner)
    owner(
        "UPDATE signing_keys SET retired_at = clock_timestamp() WHERE purpose = 'log'",
        "UPDATE signing_keys SET retired_at = NULL"
        " WHERE key_id = (SELECT key_id FROM log_generations)",
    )
    rolled_back.halted(LogRolledBack)
    third = succession.succeed(rolled_back.sequencer(), keys, force=False).generation
    assert third.origin == f"{ORIGIN}/3"
    rolled_back.prove()


def test_a_log_in_order_is_not_ended_unless_forced(world: World) -> None:
    with pytest.raises(Conflict, match="can go on"):
        succession.succeed(world.sequencer(), world.master_keys, force=False)
    new = succession.succeed(world.sequencer(), world.master_keys, force=True).generation
    assert new.predecessor is not None
    assert new.predecessor.size == 300
    world.prove()
    with pytest.raises(Conflict, match="can go on"):
        succession.succeed(world.sequencer(), world.master_keys, force=False)


@pytest.mark.parametrize(
    "damage",
    [
        f"{FLIP.replace('40', '9')} WHERE level = 1",
        "UPDATE checkpoints SET root = sha256('other') WHERE size = 300",
        "DELETE FROM log_tiles WHERE level = -1",
    ],
)
def test_a_log_without_a_head_outside_that_can_be_mended_is_never_ended(
    world: World, owner: Owner, damage: str
) -> None:
    owner(damage, "UPDATE log_generations SET head_kept = false")
    sequencer = world.sequencer(head=None)
    for force in (False, True):
        with pytest.raises(Conflict, match="log rebuild"):
            succession.succeed(sequencer, world.master_keys, force=force)
    replace(world, store=None).rebuild(repair=True)
    sequencer.tick(float("inf"))
    assert generations.load_state(world.database).trouble is None
    world.prove()


def test_a_successor_never_names_an_unsigned_checkpoint(world: World, owner: Owner) -> None:
    owner(
        "UPDATE log_generations SET head_kept = false",
        "UPDATE checkpoints SET root = sha256('other'), note = 'x' WHERE size = 300",
        "DELETE FROM log_leaves WHERE leaf_index = 17",
        "DELETE FROM log_tiles WHERE level = -1",
    )
    with pytest.raises(LogDamaged):
        succession.succeed(world.sequencer(head=None), world.master_keys, force=True)


def test_an_appointment_under_a_master_key_that_is_away_names_the_key(world: World) -> None:
    succession.succeed(world.sequencer(), world.master_keys, force=True)
    away = replace(world, master_keys=MasterKeys.parse(MasterKeys.generate()))
    with pytest.raises(LogDamaged, match=f"{world.master_keys.ids[0]}, not in MASTER_KEYS"):
        away.sequencer().run()
    world.sequencer().run()


def test_the_chain_of_every_tenant_tells_of_the_successor(rolled_back: World) -> None:
    tenant_id, _ = tenants.create(rolled_back.database, MASTER_KEYS, "somebody")
    succession.succeed(rolled_back.sequencer(), rolled_back.master_keys, force=False)
    with rolled_back.database.transaction(tenant_id) as session:
        actions = session.scalars(text("SELECT action FROM audit_entries ORDER BY seq")).all()
    assert actions[-1] == "log.succeed"


def test_the_head_of_another_log_ends_no_log_and_is_not_replaced(world: World) -> None:
    assert world.store is not None
    before = world.store.read()
    foreign = head_guard.text(Checkpoint("another.example/log", 7, bytes(32)))
    assert world.store.swap(before, foreign)
    with pytest.raises(LogRolledBack) as refusal:
        world.sequencer().tick(float("inf"))
    assert "head of another log, another.example/log" in refusal.value.detail
    assert "log succeed" not in refusal.value.detail
    with pytest.raises(Conflict, match="head of another log"):
        succession.succeed(world.sequencer(), world.master_keys, force=False)
    assert world.store.read() == foreign
    # With the head put back, the log goes on.
    assert world.store.swap(foreign, before or b"")
    add_leaves(world.database, 1)
    world.sequencer().tick(float("inf"))
    assert generations.load_state(world.database).trouble is None
    world.prove()


def test_a_head_that_is_older_than_what_was_published_ends_no_log(world: World) -> None:
    assert world.store is not None
    old = world.store.read()
    world.grow(100)
    assert world.store.swap(world.store.read(), old or b"")
    with pytest.raises(Conflict, match="try again"):
        succession.succeed(world.sequencer(), world.master_keys, force=True)
    world.sequencer().tick(float("inf"))
    new = succession.succeed(world.sequencer(), world.master_keys, force=True).generation
    assert new.predecessor is not None
    assert new.predecessor.size == 400
    world.prove()
