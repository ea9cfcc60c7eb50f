"""A published log, the owner of its tables, and what a restore leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from app.settings import Settings
from tests.support.evidence.logs import Owner, World, dump, new_world, restore


@pytest.fixture
def new_log(log_settings: Settings, log_owner: Engine, tmp_path: Path) -> Iterator[World]:
    """Return a log that has not begun."""
    with new_world(log_settings, log_owner, tmp_path) as made:
        yield made


@pytest.fixture
def world(new_log: World) -> World:
    """Return a published log of 300 leaves."""
    new_log.grow(300)
    new_log.check_consistency()
    return new_log


@pytest.fixture
def owner(log_owner: Engine) -> Owner:
    """Return what runs SQL as the tables' owner, whom row-level security does not bind."""

    def execute(*statements: str) -> None:
        with log_owner.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    return execute


@pytest.fixture
def rolled_back(world: World, owner: Owner) -> World:
    """Return the log after a restore: 300 leaves, where 400 were published."""
    dump(owner)
    world.grow(100)
    world.check_consistency()
    restore(owner)
    return world
