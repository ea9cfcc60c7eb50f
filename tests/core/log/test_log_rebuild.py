"""A damaged log is recomputed from its leaves: tiles, rows and checkpoints."""

from dataclasses import replace

import pytest

from app.core.log import publication, succession
from app.errors import Conflict, LogDamaged
from tests.support.evidence.logs import FLIP, Closed, Owner, World, add_leaves


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        (f"{FLIP} WHERE level = 0 AND number = 0", "tile/0/000"),
        (f"{FLIP.replace('40', '9')} WHERE level = -1 AND number = 1", "tile/entries/001"),
        ("DELETE FROM log_tiles WHERE level = 1", "tile/1/000"),
        ("INSERT INTO log_tiles VALUES (1, 0, 2, sha256('stray'))", "tile/0/002"),
    ],
)
def test_rebuilding_finds_the_first_wrong_tile_and_puts_it_right(
    world: World, owner: Owner, damage: str, path: str
) -> None:
    assert world.rebuild().first is None
    owner(damage)
    for repair in (False, False, True):
        assert world.rebuild(repair=repair).first == path
    assert world.rebuild().first is None
    world.grow(300)
    world.prove()


def test_a_tree_of_several_parts_is_grown_again(world: World, owner: Owner) -> None:
    world.grow(9_000)
    assert world.rebuild().is_identical
    owner(f"{FLIP} WHERE level = 1 AND number = 0", f"{FLIP} WHERE level = 0 AND number = 35")
    assert world.rebuild(repair=True).first == "tile/0/035"
    assert world.rebuild().is_identical
    world.prove()


# What is done to leaf 17's row, and how many rows are wrong then.
LEAF_17 = {
    "UPDATE log_leaves SET data = 'x', leaf_hash = sha256('\\x0078') WHERE leaf_index = 17": 1,
    "UPDATE log_leaves SET data = 'x' WHERE leaf_index = 17": 1,
    "DELETE FROM log_leaves WHERE leaf_index = 17": 1,
    "UPDATE log_leaves SET generation = NULL, leaf_index = NULL WHERE leaf_index = 17": 1,
    "DELETE FROM log_leaves": 300,
    "UPDATE log_leaves SET leaf_index = 1000000 WHERE leaf_index = 17": 2,
}


@pytest.mark.parametrize(("damage", "rows"), LEAF_17.items())
def test_rows_of_leaves_are_put_back_from_the_entry_bundles(
    world: World, owner: Owner, damage: str, rows: int
) -> None:
    hashes = world.hashes()
    owner(damage)
    assert world.rebuild().rows == rows
    assert world.rebuild(repair=True).rows == rows
    assert world.rebuild().is_identical
    assert world.hashes() == hashes
    assert world.waiting() == 0
    world.prove()


def test_leaves_whose_places_were_exchanged_are_put_back(world: World, owner: Owner) -> None:
    hashes = world.hashes()
    for one, other in ((17, 18), (17, 299)):
        owner(
            f"UPDATE log_leaves SET leaf_index = 1000 WHERE leaf_index = {one}",
            f"UPDATE log_leaves SET leaf_index = {one} WHERE leaf_index = {other}",
            f"UPDATE log_leaves SET leaf_index = {other} WHERE leaf_index = 1000",
        )
        assert world.rebuild(repair=True).rows == 2
        assert world.rebuild().is_identical
        assert world.hashes() == hashes


def test_a_leaf_at_another_s_place_waits_for_its_own(world: World, owner: Owner) -> None:
    hashes, (waits,) = world.hashes(), add_leaves(world.database, 1)
    owner(
        "DELETE FROM log_leaves WHERE leaf_index = 17",
        "UPDATE log_leaves SET generation = 1, leaf_index = 17 WHERE leaf_index IS NULL",
    )
    assert world.rebuild(repair=True).rows == 1
    assert world.hashes() == hashes
    world.sequencer().run()
    assert world.hashes() == [*hashes, waits]
    world.prove()


@pytest.mark.parametrize("damage", list(LEAF_17)[:3])
def test_a_leaf_that_most_copies_lost_is_not_made_up(
    world: World, owner: Owner, damage: str
) -> None:
    owner(damage, "DELETE FROM log_tiles WHERE level = -1 AND number = 0")
    before = world.published()
    with pytest.raises(LogDamaged):
        world.rebuild(repair=True)
    assert world.published() == before


def test_a_row_behind_the_end_is_no_leaf(world: World, owner: Owner) -> None:
    hashes, (waits,) = world.hashes(), add_leaves(world.database, 1)
    owner(
        "UPDATE log_leaves SET generation = 1, leaf_index = 9000 WHERE leaf_index IS NULL",
        "INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)"
        " VALUES (gen_random_uuid(), sha256('other'), 'x', 1, 9001)",
    )
    assert world.rebuild().rows == 2
    assert world.rebuild(repair=True).rows == 2
    assert world.rebuild().is_identical
    world.sequencer().run()
    assert world.hashes() == [*hashes, waits]
    world.prove()


@pytest.mark.parametrize("kept", [True, False], ids=["a head outside", "no head"])
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE checkpoints SET note = 'x' WHERE size = 300",
        "UPDATE checkpoints SET root = sha256('other'), note = 'x' WHERE size = 300",
        "DELETE FROM checkpoints WHERE size = 300",
    ],
)
def test_a_checkpoint_is_signed_again_as_it_was(
    world: World, owner: Owner, damage: str, kept: bool
) -> None:
    before = world.published().note
    here = replace(world, store=world.store if kept else None)
    owner(damage, *([] if kept else ["UPDATE log_generations SET head_kept = false"]))
    if not kept and "root" in damage:
        with pytest.raises(LogDamaged):
            here.rebuild(repair=True)
        return
    assert here.rebuild().checkpoint == 300
    here.rebuild(repair=True)
    here.sequencer().tick(float("inf"))
    assert here.rebuild().is_identical
    assert world.published().note == before
    world.prove()


@pytest.mark.parametrize("kept", [True, False], ids=["a head outside", "no head"])
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE checkpoints SET root = sha256('other') WHERE size = 300",
        "UPDATE checkpoints SET note = 'x' WHERE size = 300",
        "UPDATE checkpoints SET root = sha256('other'), note = 'x' WHERE size = 300",
    ],
)
def test_behind_a_candidate_the_published_checkpoint_is_put_right(
    world: World, owner: Owner, damage: str, kept: bool
) -> None:
    here = replace(world, store=world.store if kept else None)
    if not kept:
        owner("UPDATE log_generations SET head_kept = false")
    before = world.published().note
    add_leaves(world.database, 5)
    here.sequencer(gate=Closed()).run()
    owner(damage)
    for force in (False, True):
        with pytest.raises(Conflict, match="log rebuild"):
            succession.succeed(here.sequencer(gate=Closed()), world.master_keys, force=force)
    assert here.rebuild().checkpoint == 300
    here.rebuild(repair=True)
    assert here.rebuild().is_identical
    assert world.published().note == before
    with world.database.across_tenants() as session:
        waits = publication.current_candidate(session)
    assert waits is not None
    assert waits.checkpoint.size == 305
    here.sequencer().tick(float("inf"))
    world.prove()
    assert world.published().note == waits.note
