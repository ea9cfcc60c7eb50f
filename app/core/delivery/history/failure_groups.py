"""Groups of failures: failed and retrying deliveries, by webhook and cause.

The newest 10,000 are read. A replayed event counts by its newest replay alone, so an event that has
arrived is in no group, and no event is in two. A group's id is its webhook and fingerprint.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy.orm import Session

from app.core.delivery import retries
from app.core.delivery.history import delivery_history, delivery_list
from app.core.delivery.history.delivery_list import Filters, Group
from app.core.delivery.history.event_history import EVENT_ROWS, event_values
from app.core.delivery.lanes import lanes
from app.database import cursor
from app.schemas import fields
from app.schemas.schema import AnswerSchema

_REPLAYED = """
SELECT webhook_id FROM lanes WHERE tenant_id = (SELECT %s::uuid) AND replays_accepted > 0
"""

_EVENT = "webhook_id, event_id"
IS_REPLAYED = "(webhook_id IN (SELECT unnest(%(replayed)s::uuid[]))) IS TRUE"
"""SQL condition of a row: its webhook has had replays. Other rows need no check."""

AGAIN = f"""
ranges AS MATERIALIZED (
    SELECT webhook_id, min(event)::uuid AS first, max(event)::uuid AS last
      FROM (SELECT webhook_id, event_id::text AS event FROM rows WHERE {IS_REPLAYED} OFFSET 0) AS t
     GROUP BY 1
), again AS MATERIALIZED (
    SELECT r.* FROM ranges CROSS JOIN LATERAL (
        SELECT r.webhook_id, r.event_id, r.id, r.status, r.created_at, r.finished_at, r.job_id,
               r.attempts
          FROM deliveries AS r
         WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.kind = 'replay'
           AND r.webhook_id = ranges.webhook_id
           AND r.event_id BETWEEN ranges.first AND ranges.last OFFSET 0) AS r
)
"""
"""Two CTEs to follow `rows` (`webhook_id`, `event_id`): `again` has the replays of its events.

It may have replays of other events too.
"""


def has_replay(condition: str) -> str:
    """Return the SQL condition of a row that some replay `r` of its event fulfils `condition`."""
    return _is_event_of(f"again AS r WHERE {condition}")


def has_later_replay(condition: str) -> str:
    """Return `has_replay` for later replays; a row that is a replay must fulfil it too."""
    return f"""
CASE WHEN is_replay THEN (id IN (SELECT unnest(ARRAY(
         SELECT DISTINCT ON ({_EVENT}) id FROM again AS r
          WHERE {condition} AND {_is_event_of("rows WHERE is_replay")}
          ORDER BY {_EVENT}, id DESC)))) IS NOT TRUE
     ELSE {has_replay(condition)} END
"""


def _is_event_of(rows: str) -> str:
    """Return the SQL condition of a row that one of `rows` has its event and webhook.

    Arrays hide the row count from PostgreSQL, and `IS TRUE` prevents a join: so it hashes the
    values regardless of its statistics.
    """
    events = f"ARRAY(SELECT webhook_id FROM {rows}), ARRAY(SELECT event_id FROM {rows})"
    return f"(({_EVENT}) IN (SELECT * FROM unnest({events}))) IS TRUE"


def replayed_values(session: Session, tenant_id: UUID) -> dict[str, Any]:
    """Return the parameter values of `AGAIN`: the tenant, and its webhooks with replays."""
    replayed = cursor(session, scalar_row).execute(_REPLAYED, (tenant_id,)).fetchall()
    return {"tenant": tenant_id, "replayed": replayed}


OUTCOME: dict[str, Any] = {
    "description": "How the last attempt ended: `succeeded`, `refused` (an answer that is no 2xx), "
    "or the failure: `timeout`, `connect`, `dns`, `tls`, `reset`, `protocol`, `refused_address`, "
    "`bad_url`, `worker_lost`.",
    "example": "timeout",
}
GROUP_EXAMPLE = "grp_0192f0c1a2b37c4d8e5f60718293a4b51f0c92ab34d5e678"

WINDOW = 10_000
MOST_GROUPS = 200


class FailureGroupSchema(AnswerSchema):
    """Failures of one webhook, or of one of its lanes, that ended the same way."""

    group = fields.Text(100, description="The name of the group.", example=GROUP_EXAMPLE)
    webhook_id = fields.Id("whk")
    outcome = fields.Text(
        50, allow_none=True, description="null: recorded by an earlier release.", metadata=OUTCOME
    )
    status_code = fields.Integer(0, 999, allow_none=True, example=503)
    error = fields.Text(
        1000,
        min_length=0,
        allow_none=True,
        description="The error, without numbers, ids and addresses.",
        example="could not connect within <n> s",
    )
    count = fields.Count(example=1250)
    retrying = fields.Count(
        description="Of `count`: those that wait for their next attempt. A replay leaves them out."
    )
    arrived_by_replay = fields.Count(
        attribute="arrived",
        description="Not in `count`: failures of this kind whose event a replay has delivered.",
    )
    first_at = fields.Time(description="The earliest of the deliveries' last attempts.")
    last_at = fields.Time(description="The latest of the deliveries' last attempts.")
    example_id = fields.Id("dlv", description="The newest delivery of the group.")


@dataclass(frozen=True)
class Found:
    """A group, its newest delivery, and the error without what differs between attempts.

    Of `count`, `retrying` wait for their next attempt. `arrived` are not in `count`: those which
    failed the same way and whose event a replay has delivered.
    """

    webhook_id: UUID
    failure: int
    outcome: str
    status_code: int | None
    count: int
    retrying: int
    arrived: int
    first_at: datetime
    last_at: datetime
    example_id: UUID
    error: str | None = None


@dataclass(frozen=True)
class Groups:
    """Groups, largest first; not `complete` if more failed than the `window` that was read."""

    groups: list[Found]
    complete: bool
    window: int = WINDOW


_NEWEST = """
(SELECT d.* FROM {table} AS d
  WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.status = '{status}' AND {conditions}
  ORDER BY d.id DESC LIMIT {window} + 1)
"""
# One statement reads the rows once; its result has at least one row, and `read` in each.
_GROUPS = f"""
WITH newest AS MATERIALIZED (
    SELECT webhook_id, event_id, id, kind = 'replay' AS is_replay, failure,
           finished_at IS NULL AS retrying, outcome, status_code,
           coalesce(attempted_at, finished_at, created_at) AS at
      FROM ({{newest}}) AS d ORDER BY d.id DESC LIMIT {{window}} + 1
), rows AS MATERIALIZED (
    SELECT * FROM newest ORDER BY id DESC LIMIT {{window}}
), {AGAIN}, marked AS (
    SELECT webhook_id, id, failure, outcome, status_code, retrying, at,
           NOT {IS_REPLAYED}
           OR NOT ({has_later_replay("status <> 'cancelled'")}) AS counts,
           {IS_REPLAYED} AND {has_replay("status = 'succeeded'")} AS arrived
      FROM rows
), groups AS (
    SELECT webhook_id, failure,
           max(outcome) FILTER (WHERE counts) AS outcome,
           max(status_code) FILTER (WHERE counts) AS status_code,
           count(*) FILTER (WHERE counts) AS count,
           count(*) FILTER (WHERE counts AND retrying) AS retrying,
           count(*) FILTER (WHERE arrived AND NOT counts) AS arrived,
           min(at) FILTER (WHERE counts) AS first_at, max(at) FILTER (WHERE counts) AS last_at,
           max(id::text) FILTER (WHERE counts)::uuid AS example_id
      FROM marked GROUP BY webhook_id, failure
    HAVING count(*) FILTER (WHERE counts) > 0
)
SELECT (SELECT count(*) FROM newest) AS read, g.webhook_id, g.failure, g.outcome, g.status_code,
       g.count, g.retrying, g.arrived, g.first_at, g.last_at, g.example_id
  FROM (VALUES (true)) AS always LEFT JOIN groups AS g ON true
 ORDER BY g.count DESC, g.last_at DESC, g.example_id LIMIT {{most}} + 1
"""


def find(
    session: Session,
    tenant_id: UUID,
    filters: Filters,
    *,
    window: int = WINDOW,
    most: int = MOST_GROUPS,
) -> Groups:
    """Return the `most` largest groups of the `window` newest failures that pass the filters.

    Raises `Invalid` for a session or record with too many findings.
    """
    statuses = delivery_list.FAILING & (filters.status or delivery_list.FAILING)
    conditions, values = delivery_list.conditions_of(filters)
    conditions += ["d.kind <> 'test'"]
    events, table = delivery_list.events_of(session, tenant_id, filters), "deliveries"
    if events is not None:
        table = f"({EVENT_ROWS})"
        values |= {"webhook": filters.webhook_id} | event_values(events)
    passing = " AND ".join(conditions)
    parts = [
        _NEWEST.format(table=table, status=status, conditions=passing, window=window)
        for status in sorted(statuses)
    ]
    if not parts:
        return Groups([], complete=True, window=window)
    if filters.webhook_id is not None:
        keys = lanes.of_webhook(session, tenant_id, filters.webhook_id)
        parts = lanes.on_each(parts, "webhook_id", keys, values)
    values |= replayed_values(session, tenant_id)
    query = _GROUPS.format(newest=" UNION ALL ".join(parts), window=window, most=most)
    # A prepared statement's generic plan reads far more.
    rows = cursor(session).execute(query, values, prepare=False).fetchall()
    found = [Found(*row[1:]) for row in rows if row[1] is not None]
    shown = found[:most]
    last = delivery_history.last_attempts(session, tenant_id, [each.example_id for each in shown])
    errors = {key: retries.normalise(attempt.error) for key, attempt in last.items()}
    return Groups(
        [replace(each, error=errors.get(each.example_id)) for each in shown],
        complete=len(found) <= most and rows[0][0] <= window,
        window=window,
    )


def represent(groups: Groups) -> dict[str, Any]:
    """Return the groups' JSON representation, as GET returns it."""
    return {
        "data": [
            FailureGroupSchema.of(found, group=Group(found.webhook_id, found.failure).text)
            for found in groups.groups
        ],
        "window": groups.window,
        "complete": groups.complete,
    }
