"""Expiring a million bundles, beside a bare DELETE of as many rows in batches of the same size."""

import time
from collections.abc import Iterator
from uuid import UUID

import psycopg
from sqlalchemy import text

from app.core.jobs import leases, steps
from app.core.records import expiry
from app.database import Database
from app.settings import Settings
from bench.datasets import library
from bench.figures import Bound, Figure, Reach, percentile
from bench.lab import Lab, owner_url
from bench.processes import BenchError
from bench.scale import Scale

_COPY = """
CREATE TABLE bare (LIKE bundles INCLUDING ALL);
INSERT INTO bare SELECT * FROM bundles;
VACUUM ANALYZE bare
"""
# What each record is compared with: none of them covers one that is due.
_MOST_HOLDS = 1_000
_HOLDS = """
INSERT INTO holds (tenant_id, id, reason, session_id, since, until, created_by)
SELECT :tenant, gen_random_uuid(), 'bench', CASE WHEN n > 10 THEN gen_random_uuid() END,
       CASE WHEN n <= 10 THEN now() + make_interval(days => n) END,
       CASE WHEN n <= 10 THEN now() + make_interval(days => n + 1) END, gen_random_uuid()
  FROM generate_series(1, :many) AS n
"""
_BARE = """
DELETE FROM bare WHERE (tenant_id, record_id) IN (
    SELECT tenant_id, record_id FROM bare ORDER BY tenant_id, record_id LIMIT %s)
"""


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Let all bundles of a tenant be due, and run its job step by step."""
    with lab.migrated() as (settings, database):
        books = library.make(settings, database, scale.records)
        bare = _bare(settings, scale.records)
        with database.transaction(books.tenant_id) as session:
            session.execute(text("UPDATE tenants SET expired_through = clock_timestamp()"))
            session.execute(text(_HOLDS), {"tenant": books.tenant_id, "many": _MOST_HOLDS})
        steps = _expire(database, books.tenant_id, scale.records)
        yield Figure(
            f"bundles expired, {scale.records} due, beside {_MOST_HOLDS} holds on others",
            scale.records / sum(steps),
            "/s",
            Bound(f"bare DELETE of {expiry.MOST_RECORDS} at once", bare),
        )
        worst = max(steps) * 1000
        note = f"p50 {percentile(steps, 50) * 1000:.0f} ms, {len(steps)} of them"
        yield Figure("longest transaction of it", worst, " ms", None, Reach(at_most=1000), note)


def _bare(settings: Settings, size: int) -> float:
    """Return how many rows a second a plain DELETE in batches takes away."""
    with psycopg.connect(owner_url(settings), autocommit=True) as connection:
        for statement in _COPY.split(";"):
            connection.execute(statement)
        began = time.perf_counter()
        while connection.execute(_BARE, (expiry.MOST_RECORDS,)).rowcount:
            pass
        seconds = time.perf_counter() - began
        connection.execute("DROP TABLE bare")
    return size / seconds


def _expire(database: Database, tenant_id: UUID, size: int) -> list[float]:
    """Run the job to its end; return the seconds of each step."""
    with database.transaction(tenant_id) as session:
        job = expiry.enqueue_due(session, tenant_id)
    if job is None:
        raise BenchError("nothing was due")
    seconds: list[float] = []
    progress: dict[str, int] = {}
    cursor: str | None = ""
    while cursor is not None:
        began = time.perf_counter()
        with database.transaction(tenant_id) as session:
            claimed = leases.claim(session, tenant_id, job.id)
            if claimed is None:
                raise BenchError("the job is not there")
            step = expiry.step(session, tenant_id, claimed)
            steps.advance(session, claimed, step)
            cursor, progress = step.cursor, dict(step.progress)
        seconds.append(time.perf_counter() - began)
    if progress["expired"] != size:
        raise BenchError(f"{progress['expired']} bundles expired, not {size}")
    return seconds
