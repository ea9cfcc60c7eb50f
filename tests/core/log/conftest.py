"""A published log, the owner of its tables, and what a restore leaves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from app.settings import Settings
from tests.support.evidence.backups import dump, restore
from tests.support.evidence.logs import Owner, World, new_world


@pytest.fixture
def world(log_settings: Settings, log_owner: Engine, tmp_path: Path) -> Iterator[World]:
    """Return a published log of 300 leaves."""
    with new_world(log_settings, log_owner, tmp_path) as made:
        made.grow(300)
        made.check_consistency()
        yield made


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
