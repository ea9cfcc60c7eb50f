"""`log rebuild` repairs a log that has ended, or leaves it alone."""

from collections.abc import Callable

import pytest

from app.core.log import generations, publication
from app.core.log.publication import Published
from app.core.log.recovery import succession
from app.database import cursor
from app.errors import LogDamaged, LogRolledBack
from tests.support.evidence.logs import FLIP, Owner, World, add_leaves

Fetched = tuple[Published, dict[tuple[int, int], bytes]]


@pytest.fixture
def ended(world: World) -> Callable[[], Fetched]:
    """End a log of 300 and then 600 leaves; return what others can still fetch of it."""
    world.grow(300)
    succession.succeed(world.sequencer(), world.master_keys, force=True)
    world.check_consistency()

    def fetch() -> tuple[Published, dict[tuple[int, int], bytes]]:
        with world.database.across_tenants() as session:
            generation = generations.numbered(session, 1)
            assert generation is not None
            last = publication.newest(session, generation)
            assert last is not None
            rows = cursor(session).execute(
                "SELECT level, number, data FROM log_tiles WHERE generation = 1"
            )
            return last, {(level, number): bytes(data) for level, number, data in rows.fetchall()}

    return fetch


LAST = "generation = 1 AND size = 600"


@pytest.mark.parametrize(
    "damage",
    [
        [f"DELETE FROM checkpoints WHERE {LAST}"],
        ["DELETE FROM checkpoints WHERE generation = 1"],
        [f"UPDATE checkpoints SET note = 'x' WHERE {LAST}"],
        [f"UPDATE checkpoints SET root = sha256('other'), note = 'x' WHERE {LAST}"],
        [f"UPDATE checkpoints SET root = sha256('other') WHERE {LAST}"],
        [f"{FLIP} WHERE generation = 1 AND level = 0 AND number = 1"],
        [
            f"DELETE FROM checkpoints WHERE {LAST}",
            f"{FLIP} WHERE generation = 1 AND level = 0 AND number = 1",
        ],
        [
            f"DELETE FROM checkpoints WHERE {LAST}",
            "DELETE FROM log_tiles WHERE generation = 1 AND level = 0 AND number = 2",
        ],
        ["INSERT INTO log_tiles VALUES (1, 0, 9, sha256('stray'))"],
    ],
    ids=[
        "no newest row",
        "no row",
        "bad note",
        "bad root and note",
        "bad root",
        "tile",
        "no newest row and a tile",
        "no newest row and no last tile",
        "stray tile",
    ],
)
def test_an_ended_log_is_put_right_as_it_was(
    world: World,
    owner: Owner,
    ended: Callable[[], Fetched],
    damage: list[str],
) -> None:
    before = ended()
    owner(*damage)
    assert not world.rebuild(ended=1).is_identical
    world.rebuild(ended=1, repair=True)
    assert world.rebuild(ended=1).is_identical
    assert ended() == before
    assert world.rebuild().is_identical
    world.prove()


def test_of_an_ended_log_nothing_is_cut_off_whose_end_cannot_be_had(
    world: World, owner: Owner, ended: Callable[[], Fetched]
) -> None:
    owner(
        f"DELETE FROM checkpoints WHERE {LAST}",
        "UPDATE log_tiles SET data = substr(data, 1, 32) || sha256('1') || substr(data, 65)"
        " WHERE generation = 1 AND level = 0 AND number = 2",
        "DELETE FROM log_tiles WHERE generation = 1 AND level = -1 AND number = 2",
    )
    before = ended()
    for repair in (False, True):
        with pytest.raises(LogDamaged):
            world.rebuild(ended=1, repair=repair)
    assert ended() == before


def test_a_log_that_ended_in_a_restored_database_is_whole(rolled_back: World) -> None:
    add_leaves(rolled_back.database, 20)
    with pytest.raises(LogRolledBack):
        rolled_back.sequencer().run()
    succession.succeed(rolled_back.sequencer(), rolled_back.master_keys, force=False)
    for repair in (False, True, False):
        found = rolled_back.rebuild(ended=1, repair=repair)
        assert found.is_identical
        assert found.leaves == 320
    rolled_back.prove()


def test_a_bad_note_of_a_restored_ended_log_is_not_signed_again(
    rolled_back: World, owner: Owner
) -> None:
    succession.succeed(rolled_back.sequencer(), rolled_back.master_keys, force=False)
    owner("UPDATE checkpoints SET note = 'x' WHERE generation = 1 AND size = 300")
    assert rolled_back.rebuild(ended=1).checkpoint == 300
    with pytest.raises(LogDamaged, match="Restore that row"):
        rolled_back.rebuild(ended=1, repair=True)
