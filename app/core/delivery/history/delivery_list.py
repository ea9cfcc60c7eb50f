"""The list of deliveries, of one webhook or of all: newest first, by filters.

It scans the primary key, which begins with the tenant, so no write pays for another index. A
selective filter scans a smaller set: an index of failures, of jobs, of open rows or of a webhook,
or the ids of events. A time range is a range of ids, which prunes partitions.

"""

import re
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.core import feeds
from app.core.delivery.history import delivery_history
from app.core.delivery.history.delivery_history import (
    COLUMNS,
    STATUS,
    Delivery,
    Status,
    earliest_id,
    latest_id,
)
from app.core.delivery.history.event_history import EVENT_ROWS, event_values
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


# `(SELECT …)` hides the value from the planner (docs/performance.md).
_CONDITIONS = {
    "event_type": ["d.event_type = %(event_type)s"],
    "since": ["d.created_at >= %(since)s", "d.id >= %(since_id)s"],
    "until": ["d.created_at < %(until)s", "d.id < %(until_id)s"],
    "finished_since": ["d.finished_at >= %(finished_since)s"],
    "finished_until": ["d.finished_at < %(finished_until)s", "d.id < %(finished_until_id)s"],
    "outcome": ["d.outcome = %(outcome)s", "d.status <> 'succeeded'"],
    **{
        name: [f"d.{name} = (SELECT %({name})s)"]
        for name in ("status_code", "webhook_id", "job_id")
    },
    "group": ["d.webhook_id = (SELECT %(group_of)s::uuid)", "d.kind <> 'test'", LATEST],
}


def conditions_of(filters: Filters) -> tuple[list[str], dict[str, object]]:
    """Return the SQL conditions of all filters but the status, with their values."""
    values = {name: value for name, value in vars(filters).items() if value is not None}
    if filters.outcome == "succeeded":
        del values["outcome"]
    found = [each for name in values for each in _CONDITIONS.get(name, ())]
    found += ["d.status = 'succeeded'"] * (filters.outcome == "succeeded")
    for name, bound in (
        ("since", earliest_id),
        ("until", latest_id),
        ("finished_until", latest_id),
    ):
        if isinstance(moment := values.get(name), datetime):
            values[f"{name}_id"] = bound(moment)
    if filters.group is not None:
        found.append("d.failure = %(failure)s")
        values |= {"group_of": filters.group.webhook_id, "failure": filters.group.failure}
    return found, values


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


# A page of open rows, or of those that ended in a range, scans this many and may end early.
MOST_READ = 10_000
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
) -> feeds.Page[Delivery]:
    """Return up to `limit` deliveries, newest first, older than `before`.

    A page of open deliveries may have fewer although more follow. Raises `Invalid` for a session or
    record with too many findings.
    """
    conditions, values = conditions_of(filters)
    values |= {"webhook": None, "tenant": tenant_id, "before": before, "limit": limit}
    if before is not None:
        conditions.append("d.id < %(before)s")
    events = events_of(session, tenant_id, filters)
    walk_ends: UUID | None = None
    if events is not None:
        if filters.status:
            conditions.append(f"({STATUS}) = ANY (%(statuses)s)")
            values["statuses"] = sorted(filters.status)
        values |= event_values(events)
        parts = [_select(f"({EVENT_ROWS})", conditions)]
    else:
        # An empty set for any, None if no row can match.
        statuses: frozenset[Status] | None = filters.status
        if filters.group is not None:
            statuses = (filters.status or FAILING) & FAILING or None
        elif not statuses and (filters.outcome is not None or filters.status_code is not None):
            arrived = filters.outcome == "succeeded" or 200 <= (filters.status_code or 0) < 300
            statuses = frozenset({Status.SUCCEEDED, Status.CANCELLED}) if arrived else _UNHAPPY
        ended = filters.finished_since is not None and filters.finished_until is not None
        is_open = bool(statuses and statuses & OPEN)
        named = filters.webhook_id or filters.job_id or filters.group
        if ended or (is_open and not named):
            bounds = [each for each in conditions if each.startswith("d.id ")]
            bounds += ["d.finished_at IS NULL"] * is_open
            query = _WALK_ENDS.format(conditions=" AND ".join(bounds) or "true", most=MOST_READ - 1)
            walk_ends = cursor(session, scalar_row).execute(query, values).fetchone()
        if walk_ends is not None:
            conditions.append("d.id >= %(walk_ends)s")
            values["walk_ends"] = walk_ends
        # A subquery for each status, or one for all.
        parts = [_select("deliveries", conditions)] if statuses == frozenset() else []
        parts += [
            _select("deliveries", [f"d.status = '{status}'", *conditions])
            for status in sorted((statuses or frozenset()) - OPEN)
        ]
        if statuses and statuses & OPEN:
            values["open"] = sorted(statuses & OPEN)
            parts.append(_select("deliveries", [IS_OPEN, *conditions]))
    if filters.webhook_id is not None:
        keys = lanes.of_webhook(session, tenant_id, filters.webhook_id)
        parts = lanes.on_each(parts, "webhook_id", keys, values)
    query = _PAGE.format(columns=COLUMNS, rows=" UNION ALL ".join(parts) or _NONE)
    found = cursor(session, class_row(Delivery)).execute(query, values).fetchall()
    listed = delivery_history.listed(session, tenant_id, found)
    return feeds.Page(listed, walk_ends if len(found) < limit else None)


def _select(table: str, conditions: list[str]) -> str:
    return _ROWS.format(table=table, conditions=" AND ".join(conditions) or "true")
