"""A database that is older than its log, or another one, signs nothing until the two agree."""

from pathlib import Path

import pytest

from app.core.log import generations, publication
from app.core.log.recovery import succession
from app.errors import (
    Conflict,
    LogDamaged,
    LogHalted,
    LogHeadLost,
    LogHeadUnavailable,
    LogRolledBack,
)
from tests.support.evidence.backups import TABLES, dump, restore
from tests.support.evidence.logs import FLIP, FailingHead, Owner, World, add_leaves


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
    world.sequencer()._prepare(100)
    owner("UPDATE checkpoints SET root = sha256('other') WHERE size = 301")
    world.halted(LogDamaged)
