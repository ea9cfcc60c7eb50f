"""Traffic by hour and day: what is counted, where, and for whom."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from app.clock import rfc3339
from app.core.delivery import claims, hours
from app.core.delivery.hours import Step, percentiles, span
from app.core.delivery.lanes import lanes
from app.database import Database
from app.errors import Invalid
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import uuid_of
from tests.support.callers.sending import TWO_TRIES, Worker, history, make_findings, make_webhook

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
THE_HOUR = NOW.replace(minute=0)
MIDNIGHT = NOW.replace(hour=0, minute=0)


def stats(api: Api, path: str = "/v1/stats", query: str = "") -> list[dict[str, Any]]:
    return api.rows(f"{path}?{query}")


def of(webhook: dict[str, Any]) -> str:
    return f"/v1/webhooks/{webhook['id']}/stats"


def totals(rows: list[dict[str, Any]]) -> tuple[int, ...]:
    names = ("accepted", "attempted", "succeeded", "failed", "retried")
    return tuple(sum(row[name] for row in rows) for name in names)


def test_events_and_every_attempt_are_counted_in_the_hour_and_summed_over_webhooks(
    api: ApiOf, worker: Worker, other_tenant: FreshTenant
) -> None:
    first, second = make_webhook(api()), make_webhook(api())
    make_findings(api(), 10)
    assert totals(stats(api())) == (0, 0, 0, 0, 0)

    worker.send(first, 200, limit=6, total_ms=80.0)
    worker.send(first, 500, TWO_TRIES, limit=3, total_ms=3_000.0)
    worker.unpause()
    worker.send(first, 400, total_ms=80.0)
    worker.send(second, 200, total_ms=80.0)
    # A test and a replay are attempts, and no events.
    row = history(api(), first)[-1]
    api().post(f"/v1/webhooks/{first['id']}/deliveries/{row['id']}/replay")
    api().post(f"/v1/webhooks/{first['id']}/test")
    worker.send(first, 200, total_ms=80.0)

    assert totals(stats(api(), of(first))) == (10, 12, 8, 1, 3)
    assert totals(stats(api(), of(second))) == (10, 10, 10, 0, 0)
    assert totals(stats(api())) == (20, 22, 18, 1, 3)
    times = [(row["p50_ms"], row["p95_ms"]) for row in stats(api(), of(second))]
    assert sorted(times, key=str) == [(75, 98)] + [(None, None)] * 23
    assert totals(stats(api(other_tenant.root_key))) == (0, 0, 0, 0, 0)
    assert api(other_tenant.root_key).get(of(first)).status_code == 404


@pytest.mark.parametrize(("age", "hours_ago"), [("3 hours", 3), ("9 days", 24)])
def test_an_event_is_accepted_once_when_it_was_made_or_a_day_ago(
    api: ApiOf, worker: Worker, database: Database, tenant: FreshTenant, age: str, hours_ago: int
) -> None:
    numbered, claimed = make_webhook(api()), make_webhook(api())
    make_findings(api(), 3)
    worker.run(f"UPDATE open_deliveries SET created_at = now() - interval '{age}'")
    with database.transaction(tenant.id) as session:
        before = session.scalar(text(f"SELECT now() - interval '{hours_ago} hours'"))
    worker.claim(numbered)
    with database.transaction(tenant.id) as session:
        lane = lanes.load(session, tenant.id, uuid_of(claimed["id"]))
        assert lane is not None
        assert len(claims.claim(session, lane, 2)()) == 2
        after = session.scalar(text(f"SELECT clock_timestamp() - interval '{hours_ago} hours'"))
    worker.claim(claimed)

    since = f"since={rfc3339(before - HOUR)}"
    for webhook in (numbered, claimed):
        rows = [row for row in stats(api(), of(webhook), since) if row["accepted"]]
        assert sum(row["accepted"] for row in rows) == 3
        assert all(before - HOUR < datetime.fromisoformat(row["at"]) <= after for row in rows)


def test_days_are_sums_of_hours_also_of_hours_that_are_summed_already(
    api: ApiOf, worker: Worker, database: Database, tenant: FreshTenant
) -> None:
    _add_hours(worker, {"01T03": 1, "01T23": 2, "02T00": 4, "04T00": 8})
    days = "step=day&since=2024-01-01T00:00:00Z&until=2024-01-04T00:00:00Z"
    assert [row["accepted"] for row in stats(api(), query=days)] == [6, 8, 0]

    for summed in (4, 0):
        with database.transaction(tenant.id) as session:
            assert hours.close(session, tenant.id) == summed
        assert [row["accepted"] for row in stats(api(), query=days)] == [6, 8, 0]
    _add_hours(worker, {"05T00": 1})
    make_webhook(api())
    make_findings(api(), 5)
    worker.claim(api().get("/v1/webhooks").json["data"][0])
    with database.transaction(tenant.id) as session:
        assert hours.close(session, tenant.id) == 1
    assert totals(stats(api()))[0] == 5


def _add_hours(worker: Worker, accepted: dict[str, int]) -> None:
    """Add so many to each of two webhooks' hours of January 2024."""
    for at, count in accepted.items():
        worker.run(
            "INSERT INTO delivery_hours (tenant_id, at, webhook_id, accepted)"
            " SELECT current_setting('app.tenant_id')::uuid, CAST(:at AS timestamptz),"
            "        lpad(n::text, 32, '0')::uuid, :count FROM generate_series(1, 2) AS n",
            at=f"2024-01-{at}:00:00Z",
            count=count,
        )


@pytest.mark.parametrize(
    ("since", "until", "step", "first", "last", "count"),
    [
        (None, None, Step.HOUR, THE_HOUR - 23 * HOUR, THE_HOUR, 24),
        (None, None, Step.DAY, MIDNIGHT - 29 * DAY, MIDNIGHT, 30),
        (None, THE_HOUR, Step.HOUR, THE_HOUR - 24 * HOUR, THE_HOUR - HOUR, 24),
        (NOW - HOUR, NOW + 9 * DAY, Step.HOUR, THE_HOUR - HOUR, THE_HOUR, 2),
        (NOW - DAY, NOW - DAY + timedelta(seconds=1), Step.DAY, MIDNIGHT - DAY, MIDNIGHT - DAY, 1),
        (THE_HOUR - 30 * DAY, THE_HOUR, Step.HOUR, THE_HOUR - 30 * DAY, THE_HOUR - HOUR, 720),
    ],
)
def test_rows_are_whole_hours_or_days_that_have_begun(
    since: datetime | None,
    until: datetime | None,
    step: Step,
    first: datetime,
    last: datetime,
    count: int,
) -> None:
    starts = span(NOW, since, until, step).starts
    assert (starts[0], starts[-1], len(starts)) == (first, last, count)


@pytest.mark.parametrize(
    ("since", "until", "step", "field"),
    [
        (NOW - 32 * DAY, None, Step.HOUR, "/since"),
        (NOW - 367 * DAY, None, Step.DAY, "/since"),
        (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), Step.DAY, "/since"),
        (NOW + HOUR, None, Step.HOUR, "/since"),
        (NOW - HOUR, NOW - HOUR, Step.HOUR, "/since"),
        (None, datetime.min.replace(tzinfo=UTC), Step.DAY, "/until"),
    ],
)
def test_a_span_that_is_empty_or_too_long_is_refused_by_its_field(
    since: datetime | None, until: datetime | None, step: Step, field: str
) -> None:
    with pytest.raises(Invalid) as refused:
        span(NOW, since, until, step)
    assert [each.pointer for each in refused.value.fields] == [field]


@pytest.mark.parametrize(
    ("counts", "percent", "milliseconds"),
    [
        ({}, 50, None),
        ({"within_5_ms": 10}, 50, 2),
        ({"within_5_ms": 50, "within_2_s": 50}, 50, 5),
        ({"within_5_ms": 50, "within_2_s": 50}, 95, 1900),
        ({"beyond_10_s": 1}, 95, 14750),
        ({"within_5_ms": 99, "beyond_10_s": 1}, 95, 5),
    ],
)
def test_a_percentile_lies_between_the_bounds_of_its_bucket(
    counts: dict[str, int], percent: int, milliseconds: int | None
) -> None:
    histogram = [counts.get(name, 0) for name in hours.LATENCY_MS]
    assert percentiles(histogram, percent) == [milliseconds]


def test_an_attempt_is_counted_in_the_first_bucket_that_holds_it(
    api: ApiOf, worker: Worker, database: Database, tenant: FreshTenant
) -> None:
    webhook = make_webhook(api())
    times = {0.0: "within_5_ms", 5.0: "within_5_ms", 5.1: "within_10_ms", 1e6: "beyond_10_s"}
    make_findings(api(), len(times))
    for milliseconds in times:
        worker.send(webhook, 200, limit=1, total_ms=milliseconds)

    sums = ", ".join(f"sum({name}) AS {name}" for name in hours.LATENCY_MS)
    with database.transaction(tenant.id) as session:
        found = session.execute(text(f"SELECT {sums} FROM delivery_hours")).one()._mapping
    assert {name: count for name, count in found.items() if count} == Counter(times.values())
