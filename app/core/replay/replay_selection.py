"""The selection of a bulk replay: events that did not arrive, as of one moment.

Selected by ids, by a group of failures, or by filters; without events that a replay has delivered
or will. The moment is part of the selection: preview, total and job agree despite later failures.
"""

import enum
from collections.abc import Mapping
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
from app.database import cursor, database_now


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
