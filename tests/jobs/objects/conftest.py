"""A world whose objects are files of a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.core.blobs import store
from app.core.log.sequencer import Sequencer
from app.settings import Settings
from tests.jobs.objects.worlds import World, world
from tests.support.callers.api import FreshTenant


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of the objects."""
    return tmp_path / "objects"


@pytest.fixture
def here(
    settings: Settings,
    tenant: FreshTenant,
    admin_engine: Engine,
    log: Sequencer,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    """Return the world, whose store is asked again at once after it was away."""
    monkeypatch.setattr(store, "TRY_AGAIN_SECONDS", 0.0)
    with world(settings, tenant, admin_engine, log, f"file://{folder}") as made:
        yield made
