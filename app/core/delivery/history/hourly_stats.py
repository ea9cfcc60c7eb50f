"""Traffic of one webhook or of all, by hour or day, from the rows that `lane_hours` counts.

It includes hours without traffic. Percentiles are interpolated in a histogram of attempt durations.
"""

import enum
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import accumulate
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.delivery.lanes import lanes
from app.core.delivery.lanes.lane_hours import COLUMNS, COUNTS, LATENCY_MS
from app.database import cursor
from app.errors import FieldError, Invalid


class Step(enum.StrEnum):
    """The time span of one row."""

    HOUR = "hour"
    DAY = "day"


LENGTHS = {Step.HOUR: timedelta(hours=1), Step.DAY: timedelta(days=1)}
# The number of rows without `since`, and the largest number of rows.
DEFAULT_ROWS = {Step.HOUR: 24, Step.DAY: 30}
MOST_ROWS = {Step.HOUR: 31 * 24, Step.DAY: 366}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
            start = _next(start, self.step, self.zone)
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
    length = LENGTHS[step]
    last = min(until or now, now)
    if last <= _EPOCH:
        raise Invalid(FieldError("/until", "It must be after 1970."))
    ends = _begin(last, step, zone)
    if ends < last or until is None:
        ends = _next(ends, step, zone)
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


def _begin(moment: datetime, step: Step, zone: tzinfo) -> datetime:
    """Return when the hour, or the zone's day, of a moment begins."""
    if step is Step.HOUR:
        return _EPOCH + (moment - _EPOCH) // LENGTHS[step] * LENGTHS[step]
    return _midnight(moment, zone, days=0)


def _next(begin: datetime, step: Step, zone: tzinfo) -> datetime:
    """Return when the hour or day after the one that begins then does."""
    return begin + LENGTHS[step] if step is Step.HOUR else _midnight(begin, zone, days=1)


def _midnight(moment: datetime, zone: tzinfo, days: int) -> datetime:
    day = moment.astimezone(zone).date() + timedelta(days=days)
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
 WHERE webhook_id = ANY (%(lanes)s)
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
_SUMS = ", ".join(f"sum({name}) AS {name}" for name in COLUMNS)


def rows(
    session: Session, tenant_id: UUID, span: Span, webhook_id: UUID | None = None
) -> list[dict[str, Any]]:
    """Return the JSON rows of a webhook, or of all: one for each hour or day, oldest first.

    `accepted` counts events by creation time. The other figures count attempts by recording time,
    including tests and replays: `succeeded` and `failed` those that ended their delivery, `retried`
    those that are followed by another.
    """
    values = {"tenant": tenant_id, "since": span.since, "until": span.until}
    values |= {"starts": span.starts} if span.step is Step.DAY else {}
    if webhook_id is not None:
        values["lanes"] = lanes.of_webhook(session, tenant_id, webhook_id)
    else:
        summed = cursor(session).execute(_SUMMED, (tenant_id,)).fetchone()
        values["unsummed"] = max(span.since, _after(summed[0] if summed else None))
    hours = _OF_ALL if webhook_id is None else _OF_ONE
    query = _ROWS.format(at=_AT[span.step], sums=_SUMS, hours=hours)
    found = cursor(session, dict_row).execute(query, values).fetchall()
    by_start = {row["at"]: row for row in found}
    return [_row(start, by_start.get(start, _NOTHING)) for start in span.starts]


_OF_EACH = f"""
SELECT webhook_of(webhook_id) AS webhook_id, at, {_SUMS} FROM delivery_hours
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND at >= %(since)s AND at < %(until)s
 GROUP BY 1, 2
"""


def of_each(
    session: Session, tenant_id: UUID, span: Span
) -> dict[UUID, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return for each webhook with traffic in these hours its row over all, and its rows by hour.

    The rows are as `rows` returns them.
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
    hours = Span(_begin(since, Step.HOUR, UTC), until, Step.HOUR)
    found = rows(session, tenant_id, hours, webhook_id)
    return {name: sum(row[name] for row in found) for name in ("succeeded", "failed")}


def _after(hour: datetime | None) -> datetime:
    return _EPOCH if hour is None else hour + LENGTHS[Step.HOUR]


_NOTHING = dict.fromkeys(COLUMNS, 0)


def _row(start: datetime, sums: dict[str, Any]) -> dict[str, Any]:
    p50, p95 = percentiles([sums[name] for name in LATENCY_MS], 50, 95)
    counts = {name: sums[name] for name in COUNTS}
    return {"at": rfc3339(start), **counts, "p50_ms": p50, "p95_ms": p95}


_BOUNDS = (0, *LATENCY_MS.values())


def percentiles(histogram: Sequence[int], *wanted: int) -> list[int | None]:
    """Return the `wanted` percentiles of a histogram in milliseconds, None for an empty one.

    Interpolates linearly between the bounds of a bucket.
    """
    totals = list(accumulate(histogram, initial=0))
    if not totals[-1]:
        return [None] * len(wanted)
    return [_quantile(totals, totals[-1] * percent / 100) for percent in wanted]


def _quantile(totals: Sequence[int], rank: float) -> int:
    place = bisect_left(totals, rank)
    share = (rank - totals[place - 1]) / (totals[place] - totals[place - 1])
    return round(_BOUNDS[place - 1] + share * (_BOUNDS[place] - _BOUNDS[place - 1]))
