"""What the steps of a delivery cost while an old snapshot stands, and with history of ten years.

A snapshot, as a dump holds it, keeps all that is deleted: each step must begin beyond it. The steps
are the service's own code, a few deliveries at a time, in a database of the bench's own.
"""

from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import psycopg

from app import clock, ids
from app.core import partitions
from app.core.health import gauges
from app.database import Database, cursor
from app.settings import Settings
from bench.datasets import crowd
from bench.datasets.crowd import Crowd
from bench.figures import Bound, Figure, Reach, median, percentile
from bench.lab import Lab, owner_url
from bench.parts.delivery.backlog import Steps, claim_in
from bench.scale import Scale

# What arrives between two turns at a lane at 700 a second.
_AT_ONCE = 7
_MOST_MS = {"claim": 5.0, "sweep": 10.0, "gauges": 20.0}
_EVERY_STEP = ("claim", "record", "leave", "sweep", "gauges", "post")
_YEARS_DAYS = 3650
_WEEK_DAYS = 90


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure before a snapshot, at its end, and after it; then with the longest history."""
    with lab.migrated() as (settings, database):
        one = crowd.make(owner_url(settings), tenants=1, webhooks=1)
        before = _deliver(settings, database, one, scale.snapshot // 20)
        with psycopg.connect(owner_url(settings)) as snapshot:
            snapshot.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            snapshot.execute("SELECT FROM tenants")
            _deliver(settings, database, one, scale.snapshot)
            during = _deliver(settings, database, one, scale.snapshot // 20)
            yield from _figures(f"a snapshot from {scale.snapshot} deliveries ago", during, before)
        with psycopg.connect(owner_url(settings), autocommit=True) as owner:
            owner.execute("VACUUM")
        after = _deliver(settings, database, one, scale.snapshot // 20)
        yield from _figures("the snapshot gone", after, before)
    yield from _history(lab, scale)


def _figures(
    words: str, times: dict[str, list[float]], before: dict[str, list[float]]
) -> Iterator[Figure]:
    for step in _EVERY_STEP:
        milliseconds = times[step]
        most = _MOST_MS.get(step)
        note = f"p99 {percentile(milliseconds, 99):.1f} ms"
        yield Figure(
            f"{step}, {words}",
            median(milliseconds),
            " ms",
            Bound("without", median(before[step])),
            None if most is None else Reach(at_most=most),
            note,
        )


def _deliver(
    settings: Settings, database: Database, one: Crowd, count: int
) -> dict[str, list[float]]:
    """Post and deliver so many; sweep and read the gauges once for 700."""
    steps = Steps(database, one)
    tenant_id, webhook_id = one.lanes[0]

    def read_gauges() -> None:
        with database.across_tenants(scans=False) as session:
            for read in gauges.OF_DATABASE:
                list(read(session, settings))

    for turn in range(count // _AT_ONCE):
        steps.timed("post", lambda: steps.post(_AT_ONCE))
        lane, claimed = steps.timed("claim", lambda: steps.claim(tenant_id, webhook_id))
        steps.timed("record", partial(steps.record, lane, claimed))
        steps.timed("leave", lambda: steps.leave(tenant_id, webhook_id))
        if turn % 100 == 0:
            steps.timed("sweep", lambda: steps.sweep(keep=True))
            steps.timed("gauges", read_gauges)
    return dict(steps.times)


def _history(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure the locks and times of a claim, a page and a finding with the longest history."""
    least: dict[str, list[float]] = {}
    for days in (_WEEK_DAYS, _YEARS_DAYS):
        with lab.migrated() as (settings, database):
            made = _fill(settings, days)
            one = crowd.make(owner_url(settings), tenants=1, webhooks=1)
            steps, words = Steps(database, one), f"HISTORY_DAYS={days}, {made} partitions a table"
            tenant_id, webhook_id = one.lanes[0]
            steps.post(_AT_ONCE)
            yield Figure(f"locks of a claim, {words}", _locks(database, one), "")
            for _ in range(scale.repeats):
                steps.post(_AT_ONCE)
                steps.all_on(tenant_id, webhook_id)
            for step in ("claim of 50", "record of 50", "history page", "finding posted"):
                bound = Bound("90 days", median(least[step])) if least else None
                yield Figure(f"{step}, {words}", median(steps.times[step]), " ms", bound)
            least = least or dict(steps.times)


def _fill(settings: Settings, days: int) -> int:
    """Make the partitions that so many days of history have in the end; return how many."""
    with psycopg.connect(owner_url(settings)) as owner:
        length, made = partitions.length(days), 0
        lower = partitions.week_of(clock.now()) - partitions.WEEK - length
        while lower > clock.now() - timedelta(days=days) - length:
            bounds = (ids.earliest_at(lower), ids.earliest_at(lower + length))
            for parent in partitions.PARENTS:
                owner.execute("SELECT make_history_partition(%s, %s, %s)", (parent, *bounds))
            made, lower = made + 1, lower - length
    return made


def _locks(database: Database, one: Crowd) -> float:
    tenant_id, webhook_id = one.lanes[0]
    with database.transaction(tenant_id) as session:
        claim_in(session, tenant_id, webhook_id)
        row = (
            cursor(session)
            .execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")
            .fetchone()
        )
    return float(row[0]) if row else 0.0
