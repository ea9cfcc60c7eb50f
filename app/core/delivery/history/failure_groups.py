"""Groups of failures: what failed or waits to be tried again, by webhook and cause.

The newest 10,000 are read. An event that was replayed since counts by its replay alone, so what
has arrived is in no group, and no event is in two. A group's name is its webhook and fingerprint.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.delivery import failures
from app.core.delivery.history import delivery_attempts, delivery_filters
from app.core.delivery.history.delivery_filters import Filters, Group
from app.database import cursor

WINDOW = 10_000
MOST_GROUPS = 200


@dataclass(frozen=True)
class Found:
    """One group, and the newest delivery in it; an `outcome` of None is of an earlier release."""

    webhook_id: UUID
    failure: int
    outcome: str | None
    status_code: int | None
    count: int
    first_at: datetime
    last_at: datetime
    example_id: UUID


@dataclass(frozen=True)
class Groups:
    """Groups, most first, with the normalised error of each; `complete` unless more failed."""

    groups: list[tuple[Found, str | None]]
    complete: bool


_NEWEST = """
(SELECT d.* FROM deliveries AS d
  WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.status = '{status}' AND {conditions}
  ORDER BY d.id DESC LIMIT %(window)s + 1)
"""
_GROUPS = """
WITH newest AS MATERIALIZED (
    SELECT * FROM ({rows}) AS d ORDER BY d.id DESC LIMIT %(window)s + 1
), groups AS (
    SELECT webhook_id, coalesce(failure, 0) AS failure, max(outcome) AS outcome,
           max(status_code) AS status_code, count(*) AS count,
           min(coalesce(attempted_at, finished_at, created_at)) AS first_at,
           max(coalesce(attempted_at, finished_at, created_at)) AS last_at,
           max(id::text)::uuid AS example_id
      FROM (SELECT * FROM newest ORDER BY id DESC LIMIT %(window)s) AS d
     WHERE {latest}
     GROUP BY webhook_id, coalesce(failure, 0)
)
SELECT webhook_id, failure, outcome, status_code, count, first_at, last_at, example_id
  FROM groups ORDER BY count DESC, last_at DESC, example_id LIMIT {most} + 1
"""
_MORE = "SELECT count(*) > %(window)s FROM ({rows}) AS d"


def find(session: Session, tenant_id: UUID, filters: Filters, *, window: int = WINDOW) -> Groups:
    """Return the groups of the `window` newest failures that pass the filters."""
    statuses = delivery_filters.FAILING & (filters.status or delivery_filters.FAILING)
    conditions, values = delivery_filters.other_conditions(filters)
    conditions += ["d.kind <> 'test'"]
    rows = " UNION ALL ".join(
        _NEWEST.format(status=status, conditions=" AND ".join(conditions))
        for status in sorted(statuses)
    )
    if not rows:
        return Groups([], complete=True)
    values |= {"tenant": tenant_id, "window": window}
    query = _GROUPS.format(rows=rows, latest=delivery_filters.LATEST, most=MOST_GROUPS)
    found = cursor(session, class_row(Found)).execute(query, values).fetchall()
    more = cursor(session).execute(_MORE.format(rows=rows), values).fetchone()
    shown = found[:MOST_GROUPS]
    last = delivery_attempts.last_of(session, tenant_id, [each.example_id for each in shown])
    return Groups(
        [(each, _error(last.get(each.example_id))) for each in shown],
        complete=len(found) <= MOST_GROUPS and not (more and more[0]),
    )


def represent(groups: Groups) -> dict[str, Any]:
    """Return the groups as their GET answers them."""
    return {
        "data": [_represent(found, error) for found, error in groups.groups],
        "window": WINDOW,
        "complete": groups.complete,
    }


def _represent(found: Found, error: str | None) -> dict[str, Any]:
    return {
        "group": Group(found.webhook_id, found.failure).text,
        "webhook_id": ids.text("whk", found.webhook_id),
        "outcome": found.outcome,
        "status_code": found.status_code,
        "error": error,
        "count": found.count,
        "first_at": rfc3339(found.first_at),
        "last_at": rfc3339(found.last_at),
        "example_id": ids.text("dlv", found.example_id),
    }


def _error(attempt: delivery_attempts.Attempt | None) -> str | None:
    return None if attempt is None else failures.normalise(attempt.error)
