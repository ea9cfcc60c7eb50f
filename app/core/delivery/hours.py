"""Deliveries by the hour: what was counted, how long it took, how many waited.

Every writer of an hour holds its lane's lock: numbering (`accepted`, in the hour that
`accepted_hour` says) and outcomes (the rest, in the hour of their statement, which is their
`finished_at` too: a list by that has what an hour counts). Percentiles are interpolated in a
histogram of attempt durations.
"""

import enum
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import accumulate
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row, scalar_row
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.database import cursor
from app.errors import FieldError, Invalid

# Buckets of the latency histogram, by upper bound in milliseconds. The last one's is that of a
# whole attempt, and also holds slower ones.
LATENCY_MS = {
    "within_5_ms": 5,
    "within_10_ms": 10,
    "within_25_ms": 25,
    "within_50_ms": 50,
    "within_100_ms": 100,
    "within_250_ms": 250,
    "within_500_ms": 500,
    "within_1_s": 1_000,
    "within_2_s": 2_000,
    "within_5_s": 5_000,
    "within_10_s": 10_000,
    "beyond_10_s": 15_000,
}
_BOUNDS = tuple(LATENCY_MS.values())[:-1]
COUNTS = ("accepted", "attempted", "succeeded", "failed", "retried")
COLUMNS = (*COUNTS, *LATENCY_MS)

# Counter columns, each with the SQL condition of the outcome rows that it counts.
_ADDED = {
    "attempted": "true",
    "succeeded": "status = 'succeeded'",
    "failed": "status = 'failed'",
    "retried": "next_attempt_at IS NOT NULL",
} | {
    name: f"total_ms > {above} AND total_ms <= {most}"
    for name, above, most in zip(LATENCY_MS, (-1, *_BOUNDS), (*_BOUNDS, "'infinity'"), strict=True)
}

# Hours that began longer ago no longer change: 24 h (`accepted_hour`), the hour itself, and one for
# uncommitted transactions.
_CLOSED_AFTER = timedelta(hours=26)
# Rows deleted in one transaction.
AT_ONCE = 20_000

_SUMS = ", ".join(f"sum({name})" for name in COLUMNS)
_CLOSE = f"""
INSERT INTO tenant_hours (tenant_id, at, {", ".join(COLUMNS)})
SELECT tenant_id, at, {_SUMS} FROM delivery_hours
 WHERE tenant_id = (SELECT %(tenant)s::uuid)
   AND at > coalesce((SELECT max(at) FROM tenant_hours WHERE tenant_id = %(tenant)s), '-infinity')
   AND at < clock_timestamp() - %(closed_after)s
 GROUP BY tenant_id, at
    ON CONFLICT DO NOTHING
"""
_FORGET = """
WITH summed AS (
    DELETE FROM tenant_hours WHERE tenant_id = %(tenant)s AND at < %(before)s
), waited AS (
    DELETE FROM backlog_hours WHERE tenant_id = %(tenant)s AND at < %(before)s
)
DELETE FROM delivery_hours WHERE (tenant_id, at, webhook_id) IN (
    SELECT tenant_id, at, webhook_id FROM delivery_hours
     WHERE tenant_id = (SELECT %(tenant)s::uuid) AND at < %(before)s
     ORDER BY at LIMIT %(most)s FOR UPDATE SKIP LOCKED)
"""


def add(done: str) -> str:
    """Return CTEs, the last of them `hours`, that add outcomes to the hour of their locked lanes.

    `done` names their rows: `tenant_id`, `webhook_id`, `total_ms` (null if not timed), and the
    `status` and `next_attempt_at` after the outcome.
    """
    counted = (f"count(*) FILTER (WHERE {which}) AS {name}" for name, which in _ADDED.items())
    counts = f"""
    SELECT tenant_id, webhook_id, date_trunc('hour', statement_timestamp(), 'UTC') AS at,
           {", ".join(counted)}
      FROM {done} GROUP BY tenant_id, webhook_id"""
    return added(counts, _ADDED)


def added(counts: str, names: Iterable[str]) -> str:
    """Return CTEs, the last of them `hours`, that add counts to the hours of locked lanes.

    `counts` is a query for `tenant_id`, `webhook_id`, `at` and the counts of these names.
    """
    return f"""
hour AS MATERIALIZED ({counts}
), known AS (
    UPDATE delivery_hours AS h
       SET version = h.version + 1,
           {", ".join(f"{name} = h.{name} + hour.{name}" for name in names)}
      FROM hour CROSS JOIN LATERAL (
        SELECT n.ctid AS place FROM delivery_hours AS n
         WHERE n.tenant_id = hour.tenant_id AND n.at = hour.at AND n.webhook_id = hour.webhook_id
         ORDER BY n.version DESC LIMIT 1) AS newest
     WHERE h.ctid = newest.place
    RETURNING h.tenant_id, h.webhook_id, h.at
), hours AS (
    INSERT INTO delivery_hours (tenant_id, webhook_id, at, {", ".join(names)})
    SELECT tenant_id, webhook_id, at, {", ".join(names)} FROM hour
     WHERE (tenant_id, webhook_id, at) NOT IN (SELECT tenant_id, webhook_id, at FROM known)
)"""


def close(session: Session, tenant_id: UUID) -> int:
    """Sum final hours over all webhooks, so that a chart of all reads one row per hour.

    Returns how many hours were summed. Only speed depends on how often it runs.
    """
    wanted = {"tenant": tenant_id, "closed_after": _CLOSED_AFTER}
    return cursor(session).execute(_CLOSE, wanted).rowcount


def forget_old(session: Session, tenant_id: UUID, before: datetime) -> int:
    """Delete a tenant's hours that began before a moment; return how many, `AT_ONCE` at most."""
    wanted = {"tenant": tenant_id, "before": before, "most": AT_ONCE}
    return cursor(session).execute(_FORGET, wanted).rowcount


class Step(enum.StrEnum):
    """The time span of one row."""

    HOUR = "hour"
    DAY = "day"


_LENGTHS = {Step.HOUR: timedelta(hours=1), Step.DAY: timedelta(days=1)}
# The number of rows without `since`, and the largest number of rows.
DEFAULT_ROWS = {Step.HOUR: 24, Step.DAY: 30}
MOST_ROWS = {Step.HOUR: 31 * 24, Step.DAY: 366}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Span:
    """Whole hours, or days of a time zone, from `since` (inclusive) to `until` (exclusive)."""

    since: datetime
    until: datetime
    step: Step
    zone: tzinfo = UTC

    @property
    def starts(self) -> list[datetime]:
        """The beginning of each row."""
        found = []
        start = self.since
        while start < self.until:
            found.append(start)
            start = _begin(start, self.step, self.zone, 1)
        return found


def span(
    now: datetime,
    since: datetime | None,
    until: datetime | None,
    step: Step,
    zone: tzinfo = UTC,
) -> Span:
    """Return the hours, or the zone's days, that hold every moment from `since` to `until`.

    None of them begins after `now`. An hour that lies in two days counts with the earlier one.
    Raises `Invalid` for an empty span, or one of more rows than `MOST_ROWS`.
    """
    length = _LENGTHS[step]
    last = min(until or now, now)
    if last <= _EPOCH:
        raise Invalid(FieldError("/until", "It must be after 1970."))
    ends = _begin(last, step, zone)
    if ends < last or until is None:
        ends = _begin(ends, step, zone, 1)
    if since is None:
        # Half a length more reaches into the first day where another has 23 hours, or 25.
        since = ends - DEFAULT_ROWS[step] * length + length / 2
    if since >= last:
        raise Invalid(FieldError("/since", "It must be before `until`, and before now."))
    begins = _begin(max(since, _EPOCH), step, zone)
    if ends - begins > (MOST_ROWS[step] + 0.5) * length:
        most = f"{MOST_ROWS[step] * length // timedelta(days=1)} days by the {step}"
        raise Invalid(FieldError("/since", f"At most {most} are answered."))
    return Span(begins, ends, step, zone)


def _begin(moment: datetime, step: Step, zone: tzinfo, after: int = 0) -> datetime:
    """Return when the hour, or the zone's day, of a moment begins; or so many `after` it."""
    if step is Step.HOUR:
        return _EPOCH + ((moment - _EPOCH) // _HOUR + after) * _HOUR
    day = moment.astimezone(zone).date() + timedelta(days=after)
    return datetime.combine(day, time(), zone).astimezone(UTC)


# `(SELECT …)` hides the values from the planner (docs/performance.md), except the times: it must
# see what small part of the table they select.
_ROWS = """
SELECT {at} AS at, {sums} FROM ({hours}) AS hours
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND at >= %(since)s AND at < %(until)s
 GROUP BY 1
"""
_OF_ONE = f"""
SELECT tenant_id, at, {", ".join(COLUMNS)} FROM delivery_hours
 WHERE webhook_id = ANY (ARRAY(
    SELECT id FROM webhook_lanes WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s))
"""
# The hours not summed yet span two days, if the worker prunes daily.
_OF_ALL = f"""
SELECT tenant_id, at, {", ".join(COLUMNS)} FROM tenant_hours
 UNION ALL
SELECT tenant_id, at, {", ".join(COLUMNS)} FROM delivery_hours
 WHERE at >= %(unsummed)s AND at < %(until)s
"""
_SUMMED = "SELECT max(at) FROM tenant_hours WHERE tenant_id = (SELECT %s::uuid)"
_STARTS = "%(starts)b::timestamptz[]"
_AT = {Step.HOUR: "at", Step.DAY: f"({_STARTS})[width_bucket(at, {_STARTS})]"}
_TOTALS = ", ".join(f"sum({name}) AS {name}" for name in COLUMNS)


def traffic(
    session: Session, tenant_id: UUID, span: Span, webhook_id: UUID | None = None
) -> list[dict[str, Any]]:
    """Return the JSON rows of a webhook, or of all: one for each hour or day, oldest first.

    `accepted` counts events by creation time. The other figures count attempts by recording time,
    including tests and replays: `succeeded` and `failed` those that ended their delivery, `retried`
    those that are followed by another.
    """
    values = {"tenant": tenant_id, "since": span.since, "until": span.until}
    values |= {"starts": span.starts} if span.step is Step.DAY else {}
    values["webhook"] = webhook_id
    if webhook_id is None:
        last = cursor(session, scalar_row).execute(_SUMMED, (tenant_id,)).fetchone()
        values["unsummed"] = max(span.since, last + _HOUR if last else _EPOCH)
    hours = _OF_ALL if webhook_id is None else _OF_ONE
    query = _ROWS.format(at=_AT[span.step], sums=_TOTALS, hours=hours)
    found = cursor(session, dict_row).execute(query, values).fetchall()
    by_start = {row["at"]: row for row in found}
    return [_row(start, by_start.get(start, _NOTHING)) for start in span.starts]


_OF_EACH = f"""
SELECT webhook_of(webhook_id) AS webhook_id, at, {_TOTALS} FROM delivery_hours
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND at >= %(since)s AND at < %(until)s
 GROUP BY 1, 2
"""


def of_each(
    session: Session, tenant_id: UUID, span: Span
) -> dict[UUID, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return for each webhook with traffic in these hours its row over all, and its rows by hour.

    The rows are as `traffic` returns them.
    """
    values = {"tenant": tenant_id, "since": span.since, "until": span.until}
    by_webhook: dict[UUID, dict[datetime, dict[str, Any]]] = {}
    for row in cursor(session, dict_row).execute(_OF_EACH, values):
        by_webhook.setdefault(row["webhook_id"], {})[row["at"]] = row
    return {
        webhook_id: (
            _row(span.since, {name: sum(row[name] for row in hours.values()) for name in COLUMNS}),
            [_row(start, hours.get(start, _NOTHING)) for start in span.starts],
        )
        for webhook_id, hours in by_webhook.items()
    }


def ended(
    session: Session,
    tenant_id: UUID,
    since: datetime,
    until: datetime,
    webhook_id: UUID | None = None,
) -> dict[str, int]:
    """Return how many deliveries ended in the hours that hold a range, by their status.

    Of whole hours that is what a list of those that `finished_at` puts there has.
    """
    whole = Span(_begin(since, Step.HOUR, UTC), until, Step.HOUR)
    found = traffic(session, tenant_id, whole, webhook_id)
    return {name: sum(row[name] for row in found) for name in ("succeeded", "failed")}


_NOTHING = dict.fromkeys(COLUMNS, 0)


def _row(start: datetime, sums: dict[str, Any]) -> dict[str, Any]:
    p50, p95 = percentiles([sums[name] for name in LATENCY_MS], 50, 95)
    counts = {name: sums[name] for name in COUNTS}
    return {"at": rfc3339(start), **counts, "p50_ms": p50, "p95_ms": p95}


_EDGES = (0, *LATENCY_MS.values())


def percentiles(histogram: Sequence[int], *wanted: int) -> list[int | None]:
    """Return the `wanted` percentiles of a histogram in milliseconds, None for an empty one.

    Interpolates linearly between the bounds of a bucket.
    """
    totals = list(accumulate(histogram, initial=0))
    if not totals[-1]:
        return [None] * len(wanted)
    found: list[int | None] = []
    for percent in wanted:
        rank = totals[-1] * percent / 100
        place = bisect_left(totals, rank)
        share = (rank - totals[place - 1]) / (totals[place] - totals[place - 1])
        found.append(round(_EDGES[place - 1] + share * (_EDGES[place] - _EDGES[place - 1])))
    return found


# The tenants with something open by one probe each, then their lanes' counters: no delivery is
# read but the unnumbered ones.
_LOOK = """
INSERT INTO backlog_hours AS b (tenant_id, at, most)
WITH RECURSIVE tenant AS (
    (SELECT tenant_id AS id FROM open_deliveries ORDER BY tenant_id LIMIT 1)
     UNION ALL
    SELECT (SELECT tenant_id FROM open_deliveries WHERE tenant_id > tenant.id
             ORDER BY tenant_id LIMIT 1)
      FROM tenant WHERE tenant.id IS NOT NULL
)
SELECT tenant.id, date_trunc('hour', statement_timestamp(), 'UTC'),
       sum(l.events_open + l.replays_open + l.tests_open
           + count_unnumbered(l.tenant_id, l.webhook_id))
  FROM tenant JOIN present_lanes AS l ON l.tenant_id = tenant.id
 GROUP BY tenant.id
    ON CONFLICT (tenant_id, at) DO UPDATE SET most = excluded.most WHERE excluded.most > b.most
"""
_WAITED = """
SELECT at, most FROM backlog_hours
 WHERE tenant_id = (SELECT %s::uuid) AND at >= %s AND at < %s
"""


def note_backlog(session: Session) -> int:
    """Note what waits now backlog every tenant; return how many rows changed."""
    return cursor(session).execute(_LOOK).rowcount


def backlog(session: Session, tenant_id: UUID, span: Span) -> Mapping[datetime, int]:
    """Return the most that waited in each row backlog a span in which something did."""
    found: dict[datetime, int] = {}
    starts = span.starts
    rows = cursor(session).execute(_WAITED, (tenant_id, span.since, span.until)).fetchall()
    for at, most in rows:
        start = max(each for each in starts if each <= at)
        found[start] = max(found.get(start, 0), most)
    return found
