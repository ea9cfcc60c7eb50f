"""The list of deliveries, of one webhook or of all: newest first, by filters.

It scans the primary key, which begins with the tenant, so no write pays for another index. A
selective filter scans a smaller set: an index of failures, of jobs, of open rows or of a webhook,
or the ids of events.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core import feeds
from app.core.delivery import hours
from app.core.delivery.history import delivery_history
from app.core.delivery.history.delivery_history import (
    COLUMNS,
    STATUS,
    Listed,
    Row,
    Status,
    earliest_id,
    latest_id,
)
from app.core.delivery.history.event_history import EVENT_ROWS, event_values
from app.core.delivery.hours import Step
from app.core.delivery.lanes import lanes
from app.database import cursor
from app.errors import FieldError, Invalid

FAILING = frozenset({Status.FAILED, Status.RETRYING})
OPEN = frozenset({Status.PENDING, Status.SENDING, Status.RETRYING})

# The first condition has PostgreSQL leave out what has ended.
IS_OPEN = f"d.finished_at IS NULL AND ({STATUS}) = ANY (%(open)s)"


# The newest delivery of an event to a webhook: no later replay exists, cancelled replays aside.
# A lane without replays costs no further probe.
LATEST = """
NOT EXISTS (
    SELECT FROM lanes AS l CROSS JOIN LATERAL (
        SELECT FROM deliveries AS r
         WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.webhook_id = d.webhook_id
           AND r.kind = 'replay' AND r.event_id = d.event_id AND r.status <> 'cancelled'
           AND r.id <> d.id AND (d.kind <> 'replay' OR r.id > d.id)
         LIMIT 1) AS later
     WHERE l.tenant_id = (SELECT %(tenant)s::uuid) AND l.webhook_id = d.webhook_id
       AND l.replays_accepted > 0)
"""


@dataclass(frozen=True)
class Group:
    """Failures of one webhook with one fingerprint."""

    webhook_id: UUID
    failure: int

    @property
    def text(self) -> str:
        """The group's id in the API (`grp_…`)."""
        return f"grp_{self.webhook_id.hex}{self.failure % 2**64:016x}"

    @classmethod
    def parse(cls, text: str) -> "Group | None":
        """Parse a group's id; None when it is not one."""
        match = _GROUP.fullmatch(text)
        if match is None:
            return None
        unsigned = int(match[2], 16)
        return cls(UUID(hex=match[1]), unsigned - (unsigned >> 63 << 64))


_GROUP = re.compile(r"grp_([0-9a-f]{32})([0-9a-f]{16})", re.ASCII)


@dataclass(frozen=True)
class Filters:
    """Filters of a list of deliveries; empty ones are ignored. What ends in `until` is exclusive.

    `outcome` and `status_code` are those of the last attempt; `session_id`, `record_id` and
    `finding_id` name the event's subject.
    """

    status: frozenset[Status] = frozenset()
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    outcome: str | None = None
    status_code: int | None = None
    webhook_id: UUID | None = None
    job_id: UUID | None = None
    group: Group | None = None
    event_id: UUID | None = None
    session_id: UUID | None = None
    record_id: UUID | None = None
    finding_id: UUID | None = None
    finished_since: datetime | None = None
    finished_until: datetime | None = None


def conditions_of(filters: Filters) -> tuple[list[str], dict[str, object]]:
    """Return the SQL conditions of all filters but the status, with their values."""
    found: list[str] = []
    values: dict[str, object] = {}
    if filters.event_type is not None:
        found.append("d.event_type = %(event_type)s")
        values["event_type"] = filters.event_type
    if filters.since is not None:
        found += ["d.created_at >= %(since)s", "d.id >= %(since_id)s"]
        values |= {"since": filters.since, "since_id": earliest_id(filters.since)}
    if filters.until is not None:
        found += ["d.created_at < %(until)s", "d.id < %(until_id)s"]
        values |= {"until": filters.until, "until_id": latest_id(filters.until)}
    if filters.finished_since is not None:
        found.append("d.finished_at >= %(finished_since)s")
        values["finished_since"] = filters.finished_since
    if filters.finished_until is not None:
        found += ["d.finished_at < %(finished_until)s", "d.id < %(finished_until_id)s"]
        values |= {
            "finished_until": filters.finished_until,
            "finished_until_id": latest_id(filters.finished_until),
        }
    if filters.outcome is not None:
        found += _ended_as(filters.outcome)
        values["outcome"] = filters.outcome
    equal = {
        "status_code": filters.status_code,
        "webhook_id": filters.webhook_id,
        "job_id": filters.job_id,
    }
    for name, value in equal.items():
        if value is not None:
            # `(SELECT …)` hides the value from the planner (docs/performance.md).
            found.append(f"d.{name} = (SELECT %({name})s)")
            values[name] = value
    if filters.group is not None:
        found += ["d.webhook_id = (SELECT %(group_of)s::uuid)", "d.kind <> 'test'", LATEST]
        found.append("d.failure = %(failure)s")
        values |= {"group_of": filters.group.webhook_id, "failure": filters.group.failure}
    return found, values


def _ended_as(outcome: str) -> list[str]:
    if outcome == "succeeded":
        return ["d.status = 'succeeded'"]
    return ["d.outcome = %(outcome)s", "d.status <> 'succeeded'"]


MOST_SUBJECTS = 200

_FINDINGS_OF = """
SELECT id, created_at FROM findings
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND {conditions}
 ORDER BY id DESC LIMIT {limit}
"""
_COMPLETION = """
SELECT id, completed_at FROM sessions
 WHERE tenant_id = %(tenant)s AND id = %(session_id)s AND completed_at IS NOT NULL
"""
_EVENTS = """
SELECT found.id
  FROM unnest(%(subjects)s::uuid[], %(firsts)s::uuid[], %(lasts)s::uuid[])
       AS about (subject_id, first_id, last_id)
 CROSS JOIN LATERAL (
    SELECT e.id FROM stored_events AS e
     WHERE e.tenant_id = (SELECT %(tenant)s::uuid) AND e.id BETWEEN about.first_id AND about.last_id
       AND e.subject_id = about.subject_id
     LIMIT 1) AS found
"""


def events_of(session: Session, tenant_id: UUID, filters: Filters) -> list[UUID] | None:
    """Return the events that the filters select; None for no restriction by event.

    Raises `Invalid` when the session or record has too many findings to search for.
    """
    named = [] if filters.event_id is None else [filters.event_id]
    wanted = {
        "session_id": filters.session_id,
        "record_id": filters.record_id,
        "id": filters.finding_id,
    }
    conditions = [
        f"{name} = (SELECT %({name})s::uuid)" for name in wanted if wanted[name] is not None
    ]
    if not conditions:
        return named or None
    values: dict[str, object] = {"tenant": tenant_id, **wanted}
    query = _FINDINGS_OF.format(conditions=" AND ".join(conditions), limit=MOST_SUBJECTS + 1)
    subjects = cursor(session).execute(query, values).fetchall()
    if filters.record_id is None and filters.finding_id is None:
        subjects += cursor(session).execute(_COMPLETION, values).fetchall()
    if len(subjects) > MOST_SUBJECTS:
        name = "session_id" if filters.record_id is None else "record_id"
        raise Invalid(
            FieldError(
                f"/{name}",
                f"Query parameter: this has more than {MOST_SUBJECTS} findings; list these, and "
                "ask by event_id.",
            )
        )
    values = {
        "tenant": tenant_id,
        "subjects": [subject for subject, _ in subjects],
        "firsts": [ids.earliest_at(at) for _, at in subjects],
        "lasts": [ids.latest_at(at) for _, at in subjects],
    }
    events: list[UUID] = [row[0] for row in cursor(session).execute(_EVENTS, values)]
    return [each for each in events if not named or each in named]


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
    conditions, values = conditions_of(filters)
    values |= {"webhook": None, "tenant": tenant_id, "before": before, "limit": limit}
    if before is not None:
        conditions.append("d.id < %(before)s")
    events, walk_ends = events_of(session, tenant_id, filters), None
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
    if until - since > hours.MOST_ROWS[Step.HOUR] * timedelta(hours=1):
        return False
    return sum(hours.ended(session, tenant_id, since, until).values()) <= MOST_SORTED
