"""The selection of a bulk replay: events that did not arrive, as of one moment.

Selected by ids, by a group of failures, or by filters; without events that a replay has delivered
or will. The moment is part of the selection: preview, total and job agree despite later failures.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.delivery.event_types import EventType
from app.core.delivery.history import event_history, failure_groups
from app.core.delivery.history.delivery_history import earliest_id, latest_id
from app.core.delivery.history.delivery_list import Group
from app.core.delivery.lanes import lanes
from app.database import cursor, database_now
from app.errors import NotFound


class Status(enum.StrEnum):
    """Reasons why an event did not arrive: its delivery's status, or no delivery (`skipped`)."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


_MOMENTS = ("since", "until", "failed_since", "failed_until")


@dataclass(frozen=True)
class Wanted:
    """What to replay: `ids` alone, a `group` alone, or the other filters; ends are exclusive."""

    statuses: frozenset[Status] = frozenset({Status.FAILED})
    since: datetime | None = None
    until: datetime | None = None
    failed_since: datetime | None = None
    failed_until: datetime | None = None
    event_types: frozenset[EventType] = frozenset()
    group: Group | None = None
    ids: tuple[UUID, ...] | None = None

    @classmethod
    def from_args(cls, args: Mapping[str, Any]) -> "Wanted":
        """Parse the result of `to_args`."""
        return cls(
            frozenset(map(Status, args["status"])),
            **{name: args[name] and datetime.fromisoformat(args[name]) for name in _MOMENTS},
            event_types=frozenset(map(EventType, args["event_type"] or ())),
            group=args["group"] and Group.parse(args["group"]),
            ids=args["ids"] and tuple(ids.read("dlv", each) for each in args["ids"]),
        )

    def to_args(self) -> dict[str, Any]:
        """Return this as a job's arguments."""
        return {
            "status": sorted(status.value for status in self.statuses),
            **{name: getattr(self, name) and rfc3339(getattr(self, name)) for name in _MOMENTS},
            "event_type": sorted(each.value for each in self.event_types) or None,
            "group": self.group and self.group.text,
            "ids": self.ids and [ids.text("dlv", each) for each in self.ids],
        }

    def tables(self) -> list[str]:
        """Return the names of the tables to read, in order."""
        if self.ids is not None or self.group is not None:
            return ["deliveries"]
        skipped = Status.SKIPPED in self.statuses
        return ["deliveries"] * bool(self.statuses - {Status.SKIPPED}) + ["events"] * skipped


@dataclass(frozen=True)
class Selection:
    """The wanted deliveries, of one webhook or (None) of all, as of one moment."""

    webhook_id: UUID | None
    wanted: Wanted
    as_of: datetime


# The statements below select sources: what a replay sends again.
_DELIVERIES = """
SELECT d.webhook_id, d.id, d.event_id, d.sequence, d.id AS replay_of, d.created_at,
       d.kind = 'replay' AS is_replay, {fits} AS fits
  FROM deliveries AS d
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND {conditions}
   AND d.finished_at <= %(as_of)s AND d.id > %(after)s
"""
_EVENTS = """
SELECT w.id AS webhook_id, e.id, e.id AS event_id, NULL::bigint AS sequence,
       NULL::uuid AS replay_of, e.created_at, false AS is_replay, true AS fits
  FROM webhooks AS w JOIN stored_events AS e ON e.tenant_id = w.tenant_id
 WHERE w.tenant_id = (SELECT %(tenant)s::uuid) AND e.tenant_id = (SELECT %(tenant)s::uuid)
   AND e.any_disabled AND position(uuid_send(w.id) || %(disabled)s IN e.decisions) %% 17 = 1
   AND e.created_at >= %(since)s AND e.created_at < %(until)s AND e.created_at <= %(as_of)s
   AND e.id > %(after)s AND e.id >= %(since_id)s AND e.id < %(until_id)s AND {conditions}
"""
# Conditions on a replay `r`, as of the selection's moment.
_ARRIVED = "r.status = 'succeeded' AND r.finished_at <= %(as_of)s"
_WAITED = "r.created_at <= %(as_of)s AND (r.finished_at IS NULL OR r.finished_at > %(as_of)s)"
_FAILED = "r.status = 'failed' AND r.finished_at <= %(as_of)s"

BELONGS = f"""
fits AND NOT (%(of_group)s AND {failure_groups.IS_REPLAYED}
              AND {failure_groups.has_later_replay(_FAILED)})
"""
"""SQL condition of a source among `rows`: it belongs to the selection.

Of a group it does not where a later replay failed too: then that delivery counts, in its group.
"""
STATE = f"""
CASE WHEN NOT {failure_groups.IS_REPLAYED} THEN 'selected'
     WHEN {failure_groups.has_replay(_ARRIVED)} THEN 'arrived'
     WHEN {failure_groups.has_replay(_WAITED)} THEN 'waiting'
     ELSE 'selected' END
"""
"""SQL of a source's state, as of the selection's moment, from the replays of its event."""
SETTLED = f"""
{failure_groups.IS_REPLAYED}
AND {failure_groups.has_replay("(r.status = 'succeeded' OR r.finished_at IS NULL)")}
"""
"""SQL condition of a source: by now a replay has delivered its event, or is about to."""


def sources(selection: Selection, table: str, most: int | None = None) -> str:
    """Return the statement that selects the sources in one table.

    With `most` it selects that many of the newest and one more; of a group it then includes other
    failures of the webhook, which do not `fit`.
    """
    wanted, tail = selection.wanted, "" if most is None else f" ORDER BY id DESC LIMIT {most} + 1"
    if table == "events":
        conditions = ["w.id = (SELECT %(webhook)s::uuid)"] * bool(selection.webhook_id)
        conditions += ["e.type = ANY (%(types)s)"] * bool(wanted.event_types)
        return _EVENTS.format(conditions=" AND ".join(conditions) or "true") + tail
    conditions = ["d.webhook_id = (SELECT %(webhook)s::uuid)"] * bool(selection.webhook_id)
    fits = "true"
    if wanted.ids is not None:
        conditions += ["d.id = ANY (%(ids)s)", "d.status IN ('failed', 'cancelled')"]
    elif wanted.group is not None:
        conditions += ["d.webhook_id = (SELECT %(group_of)s::uuid)", "d.status = 'failed'"]
        conditions += ["d.kind <> 'test'"] + [_SAME_FAILURE] * (most is None)
        fits = "true" if most is None else _SAME_FAILURE
    else:
        # Worded like the partial indexes' predicates: with any other status none would be used.
        named = ", ".join(f"'{each}'" for each in sorted(wanted.statuses - {Status.SKIPPED}))
        conditions += [
            f"d.status IN ({named})",
            "d.kind = 'event' AND d.created_at >= %(since)s AND d.created_at < %(until)s",
            "d.id >= %(since_id)s AND d.id < %(until_id)s",
            *["d.event_type = ANY (%(types)s)"] * bool(wanted.event_types),
            *["d.finished_at >= %(failed_since)s"] * bool(wanted.failed_since),
            *["d.finished_at < %(failed_until)s"] * bool(wanted.failed_until),
        ]
    return _DELIVERIES.format(fits=fits, conditions=" AND ".join(conditions)) + tail


_SAME_FAILURE = "d.failure = %(failure)s"


def values(session: Session, tenant_id: UUID, selection: Selection) -> dict[str, Any]:
    """Return the parameter values of the statements, `failure_groups.AGAIN` among them."""
    wanted, as_of = selection.wanted, selection.as_of
    since = wanted.since or datetime.fromtimestamp(0, UTC)
    until = wanted.until or datetime.max.replace(tzinfo=UTC)
    group = wanted.group
    return {
        **failure_groups.replayed_values(session, tenant_id),
        "webhook": selection.webhook_id,
        "types": sorted(each.value for each in wanted.event_types),
        "disabled": bytes([event_history.DISABLED]),
        "since": since,
        "since_id": earliest_id(since),
        "until": until,
        "until_id": latest_id(min(until, as_of)),
        "failed_since": wanted.failed_since,
        "failed_until": wanted.failed_until,
        "ids": list(wanted.ids or ()),
        "of_group": group is not None,
        "group_of": group and group.webhook_id,
        "failure": group and group.failure,
        "as_of": as_of,
        "after": UUID(int=0),
    }


def moment(session: Session, tenant_id: UUID, webhook_id: UUID | None) -> datetime:
    """Return the database's time, once all outcomes dated before it are committed.

    Outcomes are dated and committed under their lane's lock. So this takes each lane's lock, in the
    global lock order, and releases it by rolling back to the savepoint.
    """
    cur = cursor(session)
    cur.execute("SAVEPOINT moment")
    cur.execute(
        "SELECT FROM lanes WHERE tenant_id = %(tenant)s"
        " AND webhook_of(webhook_id) = coalesce(%(webhook)s, webhook_of(webhook_id))"
        " ORDER BY tenant_id, webhook_id FOR SHARE",
        {"tenant": tenant_id, "webhook": webhook_id},
    )
    now = database_now(session)
    cur.execute("ROLLBACK TO SAVEPOINT moment")
    return now


@dataclass(frozen=True)
class Preview:
    """A selection's counts; `complete` if all of it was counted.

    `count` events are sent again, to lanes `webhooks` (in lock order); the `oldest` and the
    `newest` were made then. `seconds` is estimated from the slowest receiver's latency, if known.
    """

    selection: Selection
    complete: bool
    count: int
    oldest: datetime | None
    newest: datetime | None
    arrived_since: int
    already_waiting: int
    not_sending: int
    seconds: int | None
    webhooks: Sequence[UUID]

    def represent(self, rate: int | None) -> dict[str, Any]:
        """Return the preview's JSON representation, for a dry run; at a `rate`, if there is one."""
        left_out = ("arrived_since", "already_waiting", "not_sending")
        return {
            "count": self.count,
            "oldest": self.oldest and rfc3339(self.oldest),
            "newest": self.newest and rfc3339(self.newest),
            "left_out": {name: getattr(self, name) for name in left_out},
            "seconds": self.seconds if rate is None else math.ceil(self.count / rate),
            "as_of": rfc3339(self.selection.as_of),
        }


# `others` are deliveries of a group or of given ids that are not replayed, as they have not failed.
_COUNTED = f"""
WITH candidates AS MATERIALIZED (
    SELECT * FROM ({{sources}}) AS d {{order}}
), rows AS MATERIALIZED (
    SELECT * FROM candidates {{newest}}
), {failure_groups.AGAIN}, marked AS (
    SELECT webhook_id, created_at, {BELONGS} AS counts, {STATE} AS state FROM rows
), others AS MATERIALIZED (
    SELECT d.webhook_id, d.finished_at FROM deliveries AS d
     WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
       AND webhook_of(d.webhook_id) = webhook_of(coalesce(%(webhook)s, d.webhook_id))
       AND {{others}}
     LIMIT {{limit}}
), parts AS (
    SELECT webhook_id, state, count(*) AS n, min(created_at) AS oldest, max(created_at) AS newest
      FROM marked WHERE counts GROUP BY 1, 2
     UNION ALL
    SELECT webhook_id, CASE WHEN finished_at IS NULL THEN 'waiting' ELSE 'arrived' END,
           count(*), NULL, NULL
      FROM others GROUP BY 1, 2
), judged AS (
    SELECT part.*, l.latency_ms / 1000 / least(l.concurrency, w.max_in_flight) AS each,
           part.state = 'selected' AND w.status = 'enabled' AND w.deleted_at IS NULL AS goes
      FROM parts AS part
      LEFT JOIN webhooks AS w ON w.tenant_id = %(tenant)s AND w.id = webhook_of(part.webhook_id)
      LEFT JOIN lanes AS l ON l.tenant_id = %(tenant)s AND l.webhook_id = part.webhook_id
), counted AS (
    SELECT sum(n) FILTER (WHERE goes) AS count, min(oldest) FILTER (WHERE goes) AS oldest,
           max(newest) FILTER (WHERE goes) AS newest,
           sum(n) FILTER (WHERE state = 'arrived') AS arrived,
           sum(n) FILTER (WHERE state = 'waiting') AS waiting,
           sum(n) FILTER (WHERE state = 'selected' AND NOT goes) AS not_sending,
           max(ceil(n * each)) FILTER (WHERE goes) AS seconds,
           bool_or(each IS NULL) FILTER (WHERE goes) AS unknown,
           array_agg(webhook_id ORDER BY webhook_id) FILTER (WHERE goes) AS webhooks
      FROM judged
)
SELECT greatest((SELECT count(*) FROM candidates), (SELECT count(*) FROM others)) AS read,
       coalesce(count, 0)::bigint, oldest, newest, coalesce(arrived, 0)::bigint,
       coalesce(waiting, 0)::bigint, coalesce(not_sending, 0)::bigint,
       CASE WHEN unknown IS NOT TRUE THEN coalesce(seconds, 0)::bigint END,
       coalesce(webhooks, ARRAY[]::uuid[])
  FROM counted
"""


def counted(
    session: Session, tenant_id: UUID, selection: Selection, most: int | None = None
) -> Preview:
    """Return the counts of a selection, or of its `most` newest deliveries and events."""
    wanted, named = selection.wanted, values(session, tenant_id, selection)
    by_status = [selection]
    if most is not None and wanted.ids is None and wanted.group is None:
        # Each status has an index with its own order.
        by_status = [
            replace(selection, wanted=replace(wanted, statuses=frozenset({status})))
            for status in sorted(wanted.statuses)
        ]
    tables = [
        f"({sources(one, table, most)})" for one in by_status for table in one.wanted.tables()
    ]
    if selection.webhook_id is not None:
        keys = lanes.of_webhook(session, tenant_id, selection.webhook_id)
        tables = lanes.on_each(tables, "webhook", keys, named)
    others = "false"
    if wanted.ids is not None:
        others = "d.id = ANY (%(ids)s) AND d.status NOT IN ('failed', 'cancelled')"
    elif wanted.group is not None:
        others = "d.status = 'retrying' AND d.kind <> 'test'"
        others += f" AND d.webhook_id = %(group_of)s AND {_SAME_FAILURE}"
    query = _COUNTED.format(
        sources=" UNION ALL ".join(tables),
        order="" if most is None else f"ORDER BY id DESC LIMIT {most} + 1",
        newest="" if most is None else f"ORDER BY id DESC LIMIT {most}",
        others=others,
        limit="ALL" if most is None else most + 1,
    )
    # A prepared statement's generic plan reads far more.
    ((read, *counts),) = cursor(session).execute(query, named, prepare=False).fetchall()
    return Preview(selection, most is None or read <= most, *counts)


_NAMED = """
SELECT id, webhook_id, event_id FROM deliveries
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND id = ANY (%(ids)s) AND kind <> 'test'
   AND webhook_of(webhook_id) = coalesce(%(webhook)s, webhook_of(webhook_id))
 ORDER BY id
"""


def one_each(
    session: Session, tenant_id: UUID, webhook_id: UUID | None, named: Sequence[UUID]
) -> tuple[UUID, ...]:
    """Return the ids, only the last one for each event and webhook.

    Raises `NotFound` for an id that names no delivery.
    """
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "ids": list(named)}
    found = cursor(session).execute(_NAMED, wanted).fetchall()
    known = {row[0] for row in found}
    for each in named:
        if each not in known:
            raise NotFound(f"There is no delivery {ids.text('dlv', each)} to replay here.")
    last = {row[1:]: row[0] for row in found}
    return tuple(sorted(last.values()))
