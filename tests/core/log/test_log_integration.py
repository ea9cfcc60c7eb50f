"""From a waiting leaf to a published checkpoint, with everything failing on the way."""

import contextlib
import itertools
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core.log import generations
from app.core.log.recovery import rebuild
from app.database import cursor
from app.ledger.merkle import EMPTY_ROOT
from app.settings import Settings
from tests.support.evidence.logs import (
    ORIGIN,
    FailingDatabase,
    FailingHead,
    Killed,
    World,
    add_leaves,
    killed,
    new_world,
)


@pytest.fixture
def world(log_settings: Settings, log_owner: Engine, tmp_path: Path) -> Iterator[World]:
    """Return a log that has not begun."""
    with new_world(log_settings, log_owner, tmp_path) as made:
        yield made


def check_tiles(world: World) -> None:
    """Hold every stored tile against the leaves."""
    with world.database.across_tenants(snapshot=True) as session:
        assert rebuild.rebuild(session, None).first is None


def test_a_log_begins_with_an_empty_checkpoint_that_is_kept_outside(world: World) -> None:
    assert not world.sequencer().run()
    last = world.published()
    assert (last.checkpoint.origin, last.checkpoint.size) == (ORIGIN, 0)
    assert last.checkpoint.root == EMPTY_ROOT
    assert world.store is not None
    assert world.store.read() == last.checkpoint.text.encode()


def test_leaves_are_published_in_the_order_they_wait_in(world: World) -> None:
    hashes = world.grow(5)
    assert world.hashes() == hashes
    world.prove()


@pytest.mark.parametrize("sizes", [(255, 1, 1, 255), (256, 256), (1, 510, 2), (700, 68)])
def test_sizes_around_a_tile_s_width_come_out_right(world: World, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        add_leaves(world.database, size)
        world.sequencer().run()
        check_tiles(world)
    world.prove()
    assert world.published().checkpoint.size == sum(sizes)


def test_sizes_around_two_levels_of_tiles_come_out_right(world: World) -> None:
    for size in (65_535, 1, 1, 255):
        add_leaves(world.database, size)
        world.sequencer().run()
        world.check_consistency()
    assert world.published().checkpoint.size == 65_792
    check_tiles(world)
    world.prove()


# With the plan that it guards against a batch takes minutes.
@pytest.mark.timeout(120)
def test_a_batch_is_taken_at_once_whatever_the_statistics_say(
    world: World, log_owner: Engine
) -> None:
    world.grow(1)
    with log_owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE log_leaves"))
    world.grow(16_384)
    assert world.published().checkpoint.size == 16_385


def test_a_run_out_of_time_says_that_more_waits(world: World) -> None:
    add_leaves(world.database, 10)
    sequencer = world.sequencer()
    sequencer.run()
    add_leaves(world.database, 10)
    assert sequencer.run(until=0.0, most=4)
    assert world.published().checkpoint.size == 14
    assert not sequencer.run(most=4)
    assert world.published().checkpoint.size == 20
    world.prove()


def test_a_leaf_that_commits_late_is_taken_when_it_is_seen(world: World) -> None:
    with world.database.across_tenants() as session:
        cur = cursor(session)
        cur.execute(
            "INSERT INTO log_leaves (id, leaf_hash, data) VALUES"
            " ('00000000-0000-7000-8000-000000000000', sha256('\\x0061'::bytea), 'a')"
        )
        world.grow(3)
        assert world.published().checkpoint.size == 3
    world.sequencer().run()
    assert world.published().checkpoint.size == 4
    world.prove()


def test_without_a_head_store_the_log_goes_on(world: World) -> None:
    world.store = None
    world.grow(3)
    world.prove()


def test_a_head_store_that_is_set_later_is_filled(world: World) -> None:
    add_leaves(world.database, 3)
    world.sequencer(head=None).run()
    world.sequencer().tick(0.0)
    assert world.store is not None
    assert world.store.read() == world.published().checkpoint.text.encode()


def test_when_nothing_waits_nothing_is_written(world: World) -> None:
    add_leaves(world.database, 3)
    sequencer = world.sequencer()
    sequencer.tick(float("inf"))
    head = FailingHead(world.store)  # type: ignore[arg-type]  # the fixture sets it
    sequencer.head = head
    head.before_read = 1
    assert not generations.load_state(world.database).waits
    assert not sequencer.tick(float("inf"))
    assert head.before_read == 1


# Faults. Each step of a run, not done at all, or done although an error came back.

STEPS = {
    "prepare, not committed": {"at": 0, "committed": False},
    "prepare, committed": {"at": 0, "committed": True},
    "head not read": {"before_read": 1},
    "head not swapped": {"before_swap": 1},
    "head swapped": {"after_swap": 1},
    "publish, not committed": {"at": 1, "committed": False},
    "publish, committed": {"at": 1, "committed": True},
}


@pytest.mark.parametrize("begun", [False, True], ids=["new log", "log of 300"])
@pytest.mark.parametrize("fault", STEPS.values(), ids=STEPS)
def test_whatever_fails_the_next_run_completes_it(
    world: World, fault: dict[str, Any], begun: bool
) -> None:
    if begun:
        world.grow(300)
        world.check_consistency()
    add_leaves(world.database, 300)
    assert world.store is not None
    head, database = FailingHead(world.store), FailingDatabase(world.database)
    for name, value in fault.items():
        setattr(head if hasattr(head, name) else database, name, value)

    assert killed(world.sequencer(head=head, database=database).run)
    world.check_consistency(*head.seen)
    world.sequencer().run()

    world.prove()
    assert world.published().checkpoint.size == (600 if begun else 300)
    assert generations.load_state(world.database) == generations.LogState(waits=False, trouble=None)


def test_killed_anywhere_again_and_again_it_comes_out_right(world: World) -> None:
    """Random crash points, all steps, several in a row; the tree that was seen never changes."""
    rng = random.Random(4711)
    for _ in range(40):
        add_leaves(world.database, rng.choice([0, 1, 7, 200, 300]))
        assert world.store is not None
        head = FailingHead(world.store, rng.choice([Killed, Killed, LookupError]))
        database = FailingDatabase(world.database)
        setattr(
            head, rng.choice(["before_read", "before_swap", "after_swap"]), rng.choice([0, 1, 2])
        )
        database.at = rng.choice([None, 0, 1, 2, 3])
        database.committed = rng.random() < 0.5
        with contextlib.suppress(Killed, LookupError):
            world.sequencer(head=head, database=database).run(most=rng.choice([50, 256, 1000]))
        world.check_consistency(*head.seen)
    world.sequencer().run()
    world.prove()
    check_tiles(world)
    assert world.waiting() == 0


def test_several_at_once_cannot_fork(world: World) -> None:
    total = 1_500
    add_leaves(world.database, total)
    heads = [FailingHead(world.store) for _ in range(4)]  # type: ignore[arg-type]  # set

    def work(head: FailingHead) -> None:
        for _ in itertools.takewhile(lambda _: world.waiting(), range(1_000)):
            world.sequencer(head=head).run(most=97)

    with ThreadPoolExecutor(len(heads)) as pool:
        for done in [pool.submit(work, head) for head in heads]:
            done.result()
    world.sequencer().run()
    world.check_consistency(*(text for head in heads for text in head.seen))
    world.prove()
    assert world.published().checkpoint.size == total


def test_one_that_slept_through_others_work_neither_moves_the_head_back_nor_cries(
    world: World,
) -> None:
    """Between preparing and swapping another finishes, and goes on twice."""
    world.grow(3)
    add_leaves(world.database, 3)
    sleeper = world.sequencer()
    work = sleeper._prepare(100)
    assert work is not None
    for _ in range(2):
        world.sequencer().run()
        add_leaves(world.database, 2)
    world.sequencer().run()
    sleeper._finish(work)
    world.prove()
    assert world.published().checkpoint.size == 10
    assert generations.load_state(world.database).trouble is None
