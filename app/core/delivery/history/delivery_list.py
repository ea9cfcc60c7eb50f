"""The list of deliveries, of one webhook or of all: newest first, by filters.

It scans the primary key, which begins with the tenant, so no write pays for another index. A
selective filter scans a smaller set: an index of failures, of jobs, of open rows or of a webhook,
or the ids of events.
"""

from datetime import timedelta
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app.core import feeds
from app.core.delivery.history import (
    delivery_filters,
    delivery_history,
    hourly_stats,
    subject_events,
)
from app.core.delivery.history.delivery_filters import (
    FAILING,
    IS_OPEN,
    OPEN,
    STATUS,
    Filters,
    Status,
)
from app.core.delivery.history.delivery_history import (
    COLUMNS,
    EVENT_ROWS,
    Listed,
    Row,
    event_values,
)
from app.core.delivery.history.hourly_stats import Step
from app.core.delivery.lanes import lanes
from app.database import cursor

# Sorting this many open rows for a page takes about ten milliseconds. With more open rows, a page
# scans this many rows, open or not, and may end early.
MOST_READ = 10_000
# As many that ended in a range are sorted; more of them are scanned, newest first.
MOST_SORTED = 50_000
# Statuses of a delivery whose last attempt failed.
_UNHAPPY = frozenset({Status.FAILED, Status.CANCELLED, Status.RETRYING, Status.SENDING})


_PAGE = """
SELECT {columns} FROM ({rows}) AS d
 ORDER BY d.id DESC LIMIT %(limit)s
"""
_ROWS = """
(SELECT d.* FROM {table} AS d
  WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND {conditions}
  ORDER BY d.id DESC LIMIT %(limit)s)
"""
_NONE = "SELECT * FROM deliveries WHERE false"
# OFFSET 0 makes PostgreSQL find the open rows by their index, then sort them.
_OPEN_ROWS = """
(SELECT * FROM deliveries
  WHERE tenant_id = (SELECT %(tenant)s::uuid) AND finished_at IS NULL OFFSET 0)
"""
# The same of those that ended in a range: they lie side by side, whenever they were created.
_ENDED_ROWS = """
(SELECT * FROM deliveries
  WHERE tenant_id = (SELECT %(tenant)s::uuid)
    AND finished_at >= %(finished_since)s AND finished_at < %(finished_until)s OFFSET 0)
"""
_FEW_ARE_OPEN = f"""
SELECT count(*) <= {MOST_READ} FROM (
    SELECT FROM open_deliveries WHERE tenant_id = (SELECT %s::uuid) LIMIT {MOST_READ} + 1
) AS found
"""
_WALK_ENDS = """
SELECT d.id FROM deliveries AS d WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND {conditions}
 ORDER BY d.id DESC OFFSET {most} LIMIT 1
"""


def page(
    session: Session,
    tenant_id: UUID,
    filters: Filters,
    *,
    before: UUID | None,
    limit: int,
) -> feeds.Page[Listed]:
    """Return up to `limit` deliveries, newest first, older than `before`.

    A page of open deliveries may have fewer although more follow. Raises `Invalid` for a session or
    record with too many findings.
    """
    conditions, values = delivery_filters.conditions(filters)
    values |= {"webhook": None, "tenant": tenant_id, "before": before, "limit": limit}
    if before is not None:
        conditions.append("d.id < %(before)s")
    events, walk_ends = subject_events.asked_for(session, tenant_id, filters), None
    ended = filters.finished_since is not None and filters.finished_until is not None
    if events is not None or (ended and _few_ended(session, tenant_id, filters)):
        if filters.status:
            conditions.append(f"({STATUS}) = ANY (%(statuses)s)")
            values["statuses"] = sorted(filters.status)
        values |= event_values(events) if events is not None else {}
        parts = [_select(_ENDED_ROWS if events is None else f"({EVENT_ROWS})", conditions)]
    else:
        statuses = _statuses(filters)
        wide = statuses and statuses & OPEN and not (filters.webhook_id or filters.job_id)
        few = bool(wide) and _few_are_open(session, tenant_id)
        if ended or (wide and not few and filters.group is None):
            walk_ends = _end_walk(session, conditions, values)
        parts = _rows(statuses, conditions, values, sort=few)
    if filters.webhook_id is not None:
        keys = lanes.of_webhook(session, tenant_id, filters.webhook_id)
        parts = lanes.on_each(parts, "webhook_id", keys, values)
    query = _PAGE.format(columns=COLUMNS, rows=" UNION ALL ".join(parts) or _NONE)
    found = cursor(session, class_row(Row)).execute(query, values).fetchall()
    listed = delivery_history.listed(session, tenant_id, found)
    return feeds.Page(listed, walk_ends if len(found) < limit else None)


def _statuses(filters: Filters) -> frozenset[Status] | None:
    """Return the possible statuses of rows: an empty set for any, None if no row can match."""
    if filters.group is None:
        return filters.status or _implied(filters)
    return (filters.status or FAILING) & FAILING or None


def _end_walk(session: Session, conditions: list[str], values: dict[str, object]) -> UUID | None:
    """Bound the scan to `MOST_READ` rows; return the last id it reads, or None if it reads all."""
    bounds = [each for each in conditions if each.startswith("d.id ")]
    query = _WALK_ENDS.format(conditions=" AND ".join(bounds) or "true", most=MOST_READ - 1)
    ends: UUID | None = cursor(session, scalar_row).execute(query, values).fetchone()
    if ends is not None:
        conditions.append("d.id >= %(walk_ends)s")
        values["walk_ends"] = ends
    return ends


def _rows(
    statuses: frozenset[Status] | None,
    conditions: list[str],
    values: dict[str, object],
    *,
    sort: bool,
) -> list[str]:
    """Return the subqueries to merge into a page: one for each status, or one for all."""
    if statuses is None:
        return []
    if not statuses:
        return [_select("deliveries", conditions)]
    parts = [
        _select("deliveries", [f"d.status = '{status}'", *conditions])
        for status in sorted(statuses - OPEN)
    ]
    if statuses & OPEN:
        values["open"] = sorted(statuses & OPEN)
        parts.append(_select(_OPEN_ROWS if sort else "deliveries", [IS_OPEN, *conditions]))
    return parts


def _select(table: str, conditions: list[str]) -> str:
    return _ROWS.format(table=table, conditions=" AND ".join(conditions) or "true")


def _implied(filters: Filters) -> frozenset[Status]:
    """Return the statuses that the outcome and status code filters imply; empty for any."""
    succeeded = filters.outcome == "succeeded" or 200 <= (filters.status_code or 0) < 300
    if filters.outcome is None and filters.status_code is None:
        return frozenset()
    return frozenset({Status.SUCCEEDED, Status.CANCELLED}) if succeeded else _UNHAPPY


def _few_are_open(session: Session, tenant_id: UUID) -> bool:
    return bool(cursor(session, scalar_row).execute(_FEW_ARE_OPEN, (tenant_id,)).fetchone())


def _few_ended(session: Session, tenant_id: UUID, filters: Filters) -> bool:
    since, until = filters.finished_since, filters.finished_until
    if filters.group is not None or since is None or until is None or since >= until:
        return False
    if until - since > hourly_stats.MOST_ROWS[Step.HOUR] * timedelta(hours=1):
        return False
    return sum(hourly_stats.ended(session, tenant_id, since, until).values()) <= MOST_SORTED
