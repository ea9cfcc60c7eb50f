"""Integration takes in what waits, whatever fails; the commands and the tick that call it."""

import contextlib
import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from structlog.testing import capture_logs

from app.core.log import generations, rebuild
from app.database import cursor
from app.ledger.merkle import EMPTY_ROOT
from app.lib.metric_registry import Tally
from app.settings import Settings
from jobs.actors.ticks import integrate
from jobs.process import runtime
from tests.support.evidence.logs import (
    FLIP,
    ORIGIN,
    FailingDatabase,
    FailingHead,
    Killed,
    World,
    add_leaves,
    failing,
    killed,
)


def check_tiles(new_log: World) -> None:
    """Hold every stored tile against the leaves."""
    with new_log.database.across_tenants(snapshot=True) as session:
        assert rebuild.rebuild(session, None).first is None


def test_a_log_begins_with_an_empty_checkpoint_that_is_kept_outside(new_log: World) -> None:
    assert not new_log.sequencer().run()
    last = new_log.published()
    assert (last.checkpoint.origin, last.checkpoint.size) == (ORIGIN, 0)
    assert last.checkpoint.root == EMPTY_ROOT
    assert new_log.store is not None
    assert new_log.store.read() == last.checkpoint.text.encode()


@pytest.mark.parametrize("sizes", [(255, 1, 1, 255), (256, 256), (1, 510, 2), (700, 68)])
def test_sizes_around_a_tile_s_width_come_out_right(new_log: World, sizes: tuple[int, ...]) -> None:
    for size in sizes:
        add_leaves(new_log.database, size)
        new_log.sequencer().run()
        check_tiles(new_log)
    new_log.prove()
    assert new_log.published().checkpoint.size == sum(sizes)


# With the plan that it guards against a batch takes minutes.
@pytest.mark.timeout(120)
def test_a_batch_is_taken_at_once_whatever_the_statistics_say(
    new_log: World, log_owner: Engine
) -> None:
    new_log.grow(1)
    with log_owner.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE log_leaves"))
    new_log.grow(16_384)
    assert new_log.published().checkpoint.size == 16_385


def test_a_run_out_of_time_says_that_more_waits(new_log: World) -> None:
    add_leaves(new_log.database, 10)
    sequencer = new_log.sequencer()
    sequencer.run()
    add_leaves(new_log.database, 10)
    assert sequencer.run(until=0.0, most=4)
    assert new_log.published().checkpoint.size == 14
    assert not sequencer.run(most=4)
    assert new_log.published().checkpoint.size == 20
    new_log.prove()


def test_a_leaf_that_commits_late_is_taken_when_it_is_seen(new_log: World) -> None:
    with new_log.database.across_tenants() as session:
        cur = cursor(session)
        cur.execute(
            "INSERT INTO log_leaves (id, leaf_hash, data) VALUES"
            " ('00000000-0000-7000-8000-000000000000', sha256('\\x0061'::bytea), 'a')"
        )
        new_log.grow(3)
        assert new_log.published().checkpoint.size == 3
    new_log.sequencer().run()
    assert new_log.published().checkpoint.size == 4
    new_log.prove()


def test_without_a_head_store_the_log_goes_on_and_one_that_is_set_later_is_filled(
    new_log: World,
) -> None:
    hashes = add_leaves(new_log.database, 3)
    new_log.sequencer(head=None).run()
    assert new_log.hashes() == hashes, "in the order they waited in"
    replace(new_log, store=None).prove()
    new_log.sequencer().tick(0.0)
    assert new_log.store is not None
    assert new_log.store.read() == new_log.published().checkpoint.text.encode()


def test_when_nothing_waits_nothing_is_written(new_log: World) -> None:
    add_leaves(new_log.database, 3)
    sequencer = new_log.sequencer()
    sequencer.tick(float("inf"))
    head = FailingHead(new_log.store)  # type: ignore[arg-type]  # the fixture sets it
    sequencer.head = head
    head.before_read = 1
    assert not generations.load_state(new_log.database).waits
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
    new_log: World, fault: dict[str, Any], begun: bool
) -> None:
    if begun:
        new_log.grow(300)
        new_log.check_consistency()
    add_leaves(new_log.database, 300)
    head, database = failing(new_log, fault)

    assert killed(new_log.sequencer(head=head, database=database).run)
    new_log.check_consistency(*head.seen)
    new_log.sequencer().run()

    new_log.prove()
    assert new_log.published().checkpoint.size == (600 if begun else 300)
    assert generations.load_state(new_log.database) == generations.LogState(
        waits=False, trouble=None
    )


def test_killed_anywhere_again_and_again_it_comes_out_right(new_log: World) -> None:
    """Random crash points, all steps, several in a row; the tree that was seen never changes."""
    rng = random.Random(4711)
    for _ in range(40):
        add_leaves(new_log.database, rng.choice([0, 1, 7, 200, 300]))
        assert new_log.store is not None
        head = FailingHead(new_log.store, rng.choice([Killed, Killed, LookupError]))
        database = FailingDatabase(new_log.database)
        setattr(
            head, rng.choice(["before_read", "before_swap", "after_swap"]), rng.choice([0, 1, 2])
        )
        database.at = rng.choice([None, 0, 1, 2, 3])
        database.committed = rng.random() < 0.5
        with contextlib.suppress(Killed, LookupError):
            new_log.sequencer(head=head, database=database).run(most=rng.choice([50, 256, 1000]))
        new_log.check_consistency(*head.seen)
    new_log.sequencer().run()
    new_log.prove()
    check_tiles(new_log)
    assert new_log.waiting() == 0


def test_several_at_once_cannot_fork(new_log: World) -> None:
    total = 1_500
    add_leaves(new_log.database, total)
    heads = [FailingHead(new_log.store) for _ in range(4)]  # type: ignore[arg-type]  # set

    def work(head: FailingHead) -> None:
        for _ in itertools.takewhile(lambda _: new_log.waiting(), range(1_000)):
            new_log.sequencer(head=head).run(most=97)

    with ThreadPoolExecutor(len(heads)) as pool:
        for done in [pool.submit(work, head) for head in heads]:
            done.result()
    new_log.sequencer().run()
    new_log.check_consistency(*(text for head in heads for text in head.seen))
    new_log.prove()
    assert new_log.published().checkpoint.size == total


def test_one_that_slept_through_others_work_neither_moves_the_head_back_nor_cries(
    new_log: World,
) -> None:
    """Between preparing and swapping another finishes, and goes on twice."""
    new_log.grow(3)
    add_leaves(new_log.database, 3)
    sleeper = new_log.sequencer()
    work = new_log.prepare()
    assert work is not None
    for _ in range(2):
        new_log.sequencer().run()
        add_leaves(new_log.database, 2)
    new_log.sequencer().run()
    sleeper._finish(work)
    new_log.prove()
    assert new_log.published().checkpoint.size == 10
    assert generations.load_state(new_log.database).trouble is None


Manage = Callable[..., tuple[int, str]]


@pytest.fixture
def log(new_log: World, log_settings: Settings, manage: Manage, tmp_path: Path) -> Manage:
    """Return a function that runs `log …` on that log."""
    settings = {
        "DATABASE_URL": log_settings.database_url,
        "LOG_HEAD_URL": (tmp_path / "head").as_uri(),
    }
    return lambda *arguments: manage("log", *arguments, **settings)


def test_status_tells_how_the_log_is_doing(log: Manage, new_log: World, tmp_path: Path) -> None:
    assert log("status") == (0, "the log has not begun: the first integration begins it\n")
    new_log.grow(3)
    add_leaves(new_log.database, 2)
    status, said = log("status")
    assert status == 0
    for line in ("published: 3 leaves", "waiting: 2 leaves", "head: in order, 3 leaves"):
        assert f"{line}\n" in said
    (tmp_path / "head").unlink()
    assert "head: log-head-lost: " in log("status")[1]


def test_rebuild_check_exits_with_1_and_names_the_first_wrong_tile(
    log: Manage, new_log: World, log_owner: Engine
) -> None:
    new_log.grow(300)
    assert log("rebuild", "--check") == (0, "300 leaves, 5 tiles\nevery stored tile is identical\n")
    with log_owner.begin() as connection:
        connection.execute(text(f"{FLIP} WHERE level = 0 AND number = 1"))
    for _ in range(2):
        status, said = log("rebuild", "--check")
        assert status == 1
        assert "the first is tile/0/001\nnothing was changed" in said
    assert log("rebuild")[0] == 0
    assert log("rebuild", "--check")[0] == 0


def test_what_cannot_be_taken_back_needs_a_yes(log: Manage, new_log: World, tmp_path: Path) -> None:
    new_log.grow(3)
    for command in ("adopt", "succeed"):
        status, said = log(command)
        assert status == 1
        assert "say --yes" in said
    assert log("succeed", "--yes")[0] == 1
    (tmp_path / "head").unlink()
    assert log("adopt", "--yes")[0] == 0
    status, said = log("succeed", "--yes", "--force")
    assert status == 0
    assert "published: 4 leaves" in said


def test_the_tick_publishes_and_cries_out_when_it_must_not(
    new_log: World, log_settings: Settings, log_owner: Engine, tmp_path: Path
) -> None:
    head_url = (tmp_path / "head").as_uri()
    runtime.start(replace(log_settings, log_head_url=head_url), threads=4, tally=Tally())
    try:
        add_leaves(new_log.database, 3)
        integrate(runtime.runtime())
        assert new_log.published().checkpoint.size == 3
        with log_owner.begin() as connection:
            connection.execute(text("DELETE FROM checkpoints WHERE size > 0"))
        add_leaves(new_log.database, 1)
        with capture_logs() as said:
            for _ in range(3):
                integrate(runtime.runtime())
        assert [(line["event"], line["log_level"], line["problem"]) for line in said] == [
            ("log_halted", "critical", "log-damaged")
        ]
    finally:
        runtime.stop()
