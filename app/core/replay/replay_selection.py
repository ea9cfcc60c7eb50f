"""The selection of a bulk replay: events that did not arrive, as of one moment.

Selected by ids, by a group of failures, or by filters; without events that a replay has delivered
or will. The moment is part of the selection: preview, total and job agree despite later failures.
"""

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
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


@dataclass(frozen=True)
class Wanted:
    """A caller's selection for a replay: `ids` alone, a `group` alone, or the other filters.

    `until` and `failed_until` are exclusive; an empty `event_types` means all types.
    """

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
        group, named = args["group"], args["ids"]
        return cls(
            frozenset(map(Status, args["status"])),
            **{
                name: args[name] and datetime.fromisoformat(args[name])
                for name in ("since", "until", "failed_since", "failed_until")
            },
            event_types=frozenset(map(EventType, args["event_type"] or ())),
            group=group and Group.parse(group),
            ids=named and tuple(ids.read("dlv", each) for each in named),
        )

    def to_args(self) -> dict[str, Any]:
        """Return this as a job's arguments."""
        moments = ("since", "until", "failed_since", "failed_until")
        return {
            "status": sorted(status.value for status in self.statuses),
            **{name: getattr(self, name) and rfc3339(getattr(self, name)) for name in moments},
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
    tail = "" if most is None else f" ORDER BY id DESC LIMIT {most} + 1"
    if table == "events":
        return _EVENTS.format(conditions=_of_events(selection)) + tail
    conditions, fits = _of_deliveries(selection), "true"
    if selection.wanted.group is not None:
        if most is None:
            conditions.append(_SAME_FAILURE)
        else:
            fits = _SAME_FAILURE
    return _DELIVERIES.format(fits=fits, conditions=" AND ".join(conditions)) + tail


def by_status(selection: Selection) -> list[Selection]:
    """Return a selection for each status, because each has an index with its own order."""
    wanted = selection.wanted
    if wanted.ids is not None or wanted.group is not None:
        return [selection]
    return [
        replace(selection, wanted=replace(wanted, statuses=frozenset({status})))
        for status in sorted(wanted.statuses)
    ]


_SAME_FAILURE = "d.failure = %(failure)s"


def _of_events(selection: Selection) -> str:
    conditions = ["w.id = (SELECT %(webhook)s::uuid)"] if selection.webhook_id else []
    conditions += ["e.type = ANY (%(types)s)"] * bool(selection.wanted.event_types)
    return " AND ".join(conditions) or "true"


def _of_deliveries(selection: Selection) -> list[str]:
    """Return the conditions of deliveries, except the fingerprint of a group."""
    wanted = selection.wanted
    conditions = ["d.webhook_id = (SELECT %(webhook)s::uuid)"] if selection.webhook_id else []
    if wanted.ids is not None:
        return [*conditions, "d.id = ANY (%(ids)s)", "d.status IN ('failed', 'cancelled')"]
    if wanted.group is not None:
        of_group = ["d.webhook_id = (SELECT %(group_of)s::uuid)", "d.status = 'failed'"]
        return [*conditions, *of_group, "d.kind <> 'test'"]
    return conditions + _filtered(wanted)


def _filtered(wanted: Wanted) -> list[str]:
    # Worded like the partial indexes' predicates: with any other status none would be used.
    named = ", ".join(f"'{each}'" for each in sorted(wanted.statuses - {Status.SKIPPED}))
    return [
        f"d.status IN ({named})",
        "d.kind = 'event' AND d.created_at >= %(since)s AND d.created_at < %(until)s",
        "d.id >= %(since_id)s AND d.id < %(until_id)s",
        *["d.event_type = ANY (%(types)s)"] * bool(wanted.event_types),
        *["d.finished_at >= %(failed_since)s"] * bool(wanted.failed_since),
        *["d.finished_at < %(failed_until)s"] * bool(wanted.failed_until),
    ]


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
class _Part:
    """Sources of one webhook: `state` is selected, arrived or waiting."""

    webhook_id: UUID
    sends: bool
    state: str
    count: int
    oldest: datetime | None = None
    newest: datetime | None = None
    seconds_each: float | None = None


_PARTS = f"""
WITH candidates AS MATERIALIZED (
    SELECT * FROM ({{sources}}) AS d {{order}}
), rows AS MATERIALIZED (
    SELECT * FROM candidates {{newest}}
), {failure_groups.AGAIN}, marked AS (
    SELECT webhook_id, created_at, {BELONGS} AS counts, {STATE} AS state FROM rows
), parts AS (
    SELECT webhook_id, state, count(*) AS count, min(created_at) AS oldest,
           max(created_at) AS newest
      FROM marked WHERE counts GROUP BY 1, 2
)
SELECT (SELECT count(*) FROM candidates) AS read, part.webhook_id,
       w.status = 'enabled' AND w.deleted_at IS NULL AS sends, part.state, part.count, part.oldest,
       part.newest, l.latency_ms / 1000 / least(l.concurrency, w.max_in_flight) AS seconds_each
  FROM (VALUES (true)) AS always
  LEFT JOIN parts AS part ON true
  LEFT JOIN webhooks AS w ON w.tenant_id = %(tenant)s AND w.id = webhook_of(part.webhook_id)
  LEFT JOIN lanes AS l ON l.tenant_id = %(tenant)s AND l.webhook_id = part.webhook_id
"""

# Deliveries of a group or of given ids that are not replayed, because they have not failed.
_OTHERS = """
SELECT d.webhook_id, true AS sends,
       CASE WHEN d.finished_at IS NULL THEN 'waiting' ELSE 'arrived' END AS state, count(*) AS count
  FROM (SELECT d.webhook_id, d.finished_at FROM deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND webhook_of(d.webhook_id) = coalesce(%(webhook)s, webhook_of(d.webhook_id))
           AND {conditions}
         LIMIT {most}) AS d
 GROUP BY 1, 2, 3
"""


@dataclass(frozen=True)
class Preview:
    """A selection's counts, by webhook; `complete` if all of it was counted."""

    selection: Selection
    parts: Sequence[_Part]
    complete: bool

    @property
    def webhooks(self) -> list[UUID]:
        """The lanes that replays are sent to, in lock order."""
        return sorted({part.webhook_id for part in self._selected})

    @property
    def count(self) -> int:
        """The number of events to send again."""
        return sum(part.count for part in self._selected)

    @property
    def _selected(self) -> list[_Part]:
        return [part for part in self.parts if part.state == "selected" and part.sends]

    def represent(self, rate: int | None) -> dict[str, Any]:
        """Return the preview's JSON representation, for a dry run."""
        oldest = min((part.oldest for part in self._selected if part.oldest), default=None)
        newest = max((part.newest for part in self._selected if part.newest), default=None)
        return {
            "count": self.count,
            "oldest": oldest and rfc3339(oldest),
            "newest": newest and rfc3339(newest),
            "left_out": {
                "arrived_since": self._left_out("arrived"),
                "already_waiting": self._left_out("waiting"),
                "not_sending": self._left_out("selected"),
            },
            "seconds": self._seconds(rate),
            "as_of": rfc3339(self.selection.as_of),
        }

    def _left_out(self, state: str) -> int:
        left_out = [part for part in self.parts if part not in self._selected]
        return sum(part.count for part in left_out if part.state == state)

    def _seconds(self, rate: int | None) -> int | None:
        """Estimate the duration in seconds, from the rate or the slowest receiver's latency."""
        if rate is not None:
            return math.ceil(self.count / rate)
        each = [(part.count, part.seconds_each) for part in self._selected]
        if any(seconds is None for _, seconds in each):
            return None
        return max((math.ceil(count * (seconds or 0)) for count, seconds in each), default=0)


def counted(
    session: Session, tenant_id: UUID, selection: Selection, most: int | None = None
) -> Preview:
    """Return the counts of a selection, or of its `most` newest deliveries and events."""
    named = values(session, tenant_id, selection)
    read, parts = _parts(session, selection, named, most)
    for conditions in _other_conditions(selection.wanted):
        query = _OTHERS.format(conditions=conditions, most="ALL" if most is None else most + 1)
        others = cursor(session, class_row(_Part)).execute(query, named).fetchall()
        read = max(read, sum(part.count for part in others))
        parts += others
    return Preview(selection, parts, complete=most is None or read <= most)


def _parts(
    session: Session, selection: Selection, named: dict[str, Any], most: int | None
) -> tuple[int, list[_Part]]:
    """Return how many candidates were read, and the counts by webhook and state."""
    sources = [
        f"({sources(one, table, most)})"
        for one in ([selection] if most is None else by_status(selection))
        for table in one.wanted.tables()
    ]
    if selection.webhook_id is not None:
        keys = lanes.of_webhook(session, named["tenant"], selection.webhook_id)
        sources = lanes.on_each(sources, "webhook", keys, named)
    query = _PARTS.format(
        sources=" UNION ALL ".join(sources),
        order="" if most is None else f"ORDER BY id DESC LIMIT {most} + 1",
        newest="" if most is None else f"ORDER BY id DESC LIMIT {most}",
    )
    # A prepared statement's generic plan reads far more.
    rows = cursor(session).execute(query, named, prepare=False).fetchall()
    return rows[0][0], [_Part(*row[1:]) for row in rows if row[1] is not None]


def _other_conditions(wanted: Wanted) -> Iterator[str]:
    if wanted.ids is not None:
        yield "d.id = ANY (%(ids)s) AND d.status NOT IN ('failed', 'cancelled')"
    if wanted.group is not None:
        yield (
            "d.status = 'retrying' AND d.webhook_id = %(group_of)s"
            " AND d.failure = %(failure)s AND d.kind <> 'test'"
        )


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
