"""`python -m app.manage log …` as an operator types it, and the tick as the worker runs it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from structlog.testing import capture_logs

from app.lib.metric_registry import Tally
from app.settings import Settings
from jobs.actors.ticks import integrate
from jobs.process import runtime
from tests.support.evidence.logs import FLIP, World, add_leaves

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
