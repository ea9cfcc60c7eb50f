"""Heads of chains in the log: each chain that has moved on, once, and what proves it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core import audit, jobs, tenants
from app.core.anchoring import anchors, heads
from app.core.anchoring.anchors import AnchorReader
from app.core.callers import OPERATOR
from app.models import NO_TENANT, Job
from app.settings import Settings
from tests.logs import World, new_world


@pytest.fixture
def world(log_settings: Settings, log_owner: Engine, tmp_path: Path) -> Iterator[World]:
    """Return a log that has not begun, in a database without tenants."""
    with log_owner.begin() as connection:
        connection.execute(text("TRUNCATE tenants, jobs, audit_heads, audit_entries CASCADE"))
    with new_world(log_settings, log_owner, tmp_path) as made:
        yield made


def run(world: World) -> int:
    """Anchor what is due as a worker does; return how many heads were."""
    with world.database.across_tenants() as session:
        job = heads.look(session)
    return 0 if job is None else finish(world, job)


def finish(world: World, job: Job) -> int:
    anchored = 0
    while True:
        with world.database.across_tenants() as session:
            claimed = jobs.claim(session, NO_TENANT, job.id)
            if claimed is None:
                return anchored
            step = heads.step(session, NO_TENANT, claimed)
            jobs.advance(session, claimed, step)
            anchored = step.progress["anchored"]


def append(world: World, tenant_id: Any) -> None:
    with world.database.transaction(tenant_id) as session:
        audit.append(session, tenant_id, OPERATOR, "test", target=("test", "1"))


def anchored(world: World, tenant_id: Any) -> list[dict[str, Any]]:
    with world.database.transaction(tenant_id, snapshot=True) as session:
        reader = AnchorReader(session, tenant_id, None)
        return [reader.represent(each) for each in anchors.rows(session, tenant_id, None, 200)]


def test_each_chain_that_moved_on_is_anchored_once(world: World) -> None:
    made = [tenants.create(world.database, "one")[0] for _ in range(3)]
    assert run(world) == 3
    assert run(world) == 0
    append(world, made[1])
    assert run(world) == 1
    assert [each["seq"] for each in anchored(world, made[1])] == [3, 2]
    assert [each["seq"] for each in anchored(world, made[0])] == [2]
