"""The deliveries of a bulk replay: made from sources in the order of ids, counted, withdrawn."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, dict_row, scalar_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import wakeups
from app.core.delivery import cancelling
from app.core.delivery.events import PRIORITY_BULK, PRIORITY_URGENT
from app.core.delivery.history import failure_groups
from app.core.delivery.history.delivery_history import earliest_id
from app.core.delivery.history.failure_groups import IS_REPLAYED
from app.core.delivery.lanes import lanes
from app.core.delivery.lanes.lanes import LaneKey
from app.core.jobs import job_rows
from app.core.replay import replay_selection
from app.core.replay.replay_selection import BELONGS, SETTLED, STATE, Selection, Wanted
from app.database import cursor
from app.models import Job

_NOWHERE = UUID(int=0)


@dataclass(frozen=True)
class Pace:
    """The pace: `rate` a second; the first `canary` alone; stop after `stop_after_failures`."""

    rate: int | None = None
    canary: int | None = None
    stop_after_failures: int | None = None


@dataclass(frozen=True)
class Plan:
    """A replay's plan: the selection, the lanes of its webhooks and its pace."""

    selection: Selection
    webhooks: tuple[UUID, ...]
    pace: Pace

    def scans(self) -> "tuple[Scan, ...]":
        """Return what is read, in order."""
        tables = self.selection.wanted.tables()
        return tuple(Scan(each, table) for table in tables for each in self.webhooks)

    @classmethod
    def of(cls, job: Job) -> "Plan":
        """Parse a job's arguments."""
        args = job_rows.args_of(job)
        one = args["webhook_id"] and ids.read("whk", args["webhook_id"])
        selection = Selection(one, Wanted.from_args(args), datetime.fromisoformat(args["as_of"]))
        webhooks = tuple(
            ids.lane_of(ids.read("whk", each), number)
            for each, number in zip(args["webhooks"], args["lanes"], strict=True)
        )
        pace = Pace(args["rate"], args["canary"], args["stop_after_failures"])
        return cls(selection, webhooks, pace)

    def to_args(self) -> dict[str, Any]:
        """Return this as a job's arguments."""
        one = self.selection.webhook_id
        return {
            "webhook_id": one and ids.text("whk", one),
            "webhooks": [ids.text("whk", each) for each in self.webhooks],
            "lanes": [ids.lane_number(each) for each in self.webhooks],
            **self.selection.wanted.to_args(),
            **vars(self.pace),
            "as_of": rfc3339(self.selection.as_of),
        }


@dataclass(frozen=True)
class Scan:
    """Rows still to be read for one webhook: those of `table` with ids above `after`."""

    webhook: UUID
    table: str
    after: UUID = _NOWHERE


@dataclass(frozen=True)
class Position:
    """The scans left, in turns, and how much of the canary is unsent: a job's cursor.

    `canary` is None once it has succeeded; `steps` counts sending steps; `forgiven` replays had
    failed when the job was last resumed.
    """

    left: tuple[Scan, ...]
    canary: int | None = None
    steps: int = 0
    forgiven: int = 0

    @classmethod
    def of(cls, job: Job, plan: Plan) -> "Position":
        """Parse a job's cursor."""
        if job.cursor is None:
            return cls(plan.scans(), plan.pace.canary)
        kept = json.loads(job.cursor)
        left = tuple(
            Scan(UUID(hex=webhook), table, UUID(hex=after))
            for webhook, table, after in kept["left"]
        )
        return cls(left, kept["canary"], kept["steps"], kept["forgiven"])

    def text(self) -> str:
        """Return this as a job's cursor."""
        left = [[each.webhook.hex, each.table, each.after.hex] for each in self.left]
        return json.dumps({**vars(self), "left": left})

    def after(self, scan: Scan, last: UUID | None, made: int) -> "Position":
        """Return the position after one more step; `last` is None at the end of a scan."""
        others = tuple(each for each in self.left if each != scan)
        left = others if last is None else (*others, replace(scan, after=last))
        canary = None if self.canary is None else max(0, self.canary - made)
        return Position(left, canary, self.steps + 1, self.forgiven)


@dataclass(frozen=True)
class Source:
    """An event that did not arrive; `settled` if a replay has delivered it or is about to.

    `selected` is false if that was already so at the selection's moment, or this job has sent it.
    """

    id: UUID
    event_id: UUID
    sequence: int | None
    replay_of: UUID | None
    selected: bool = True
    settled: bool = False

    @property
    def is_due(self) -> bool:
        """Whether to send it."""
        return self.selected and not self.settled


# Not those that it withdrew: a job that is resumed begins anew.
_SENT_BEFORE = failure_groups.has_replay(
    "r.job_id = %(job)s AND NOT (r.status = 'cancelled' AND r.attempts = 0)"
)
_PICK = f"""
WITH rows AS MATERIALIZED ({{source}} ORDER BY id LIMIT %(limit)s), {failure_groups.AGAIN}
SELECT id, event_id, sequence, replay_of,
       {BELONGS} AND {STATE} = 'selected' AND NOT ({IS_REPLAYED} AND {_SENT_BEFORE}) AS selected,
       {SETTLED} AS settled
  FROM rows ORDER BY id
"""


def pick(session: Session, job: Job, selection: Selection, scan: Scan, limit: int) -> list[Source]:
    """Return the next sources of a scan, in the order of their ids."""
    one = Selection(scan.webhook, selection.wanted, selection.as_of)
    query = _PICK.format(source=replay_selection.sources(one, scan.table))
    named = replay_selection.values(session, job.tenant_id, one)
    named |= {"job": job.id, "after": scan.after, "limit": limit}
    return cursor(session, class_row(Source)).execute(query, named, prepare=False).fetchall()


# What a job makes for a held webhook waits with the rest, its canary too.
_REPLAY = f"""
WITH made AS (
    INSERT INTO open_deliveries (tenant_id, id, webhook_id, event_id, event_type, kind, priority,
                                 sequence, replay_of, job_id, next_attempt_at)
    SELECT %(tenant)s, new.id, %(webhook)s, e.id, e.type, 'replay', lane.priority, new.sequence,
           new.replay_of, %(job)s, clock_timestamp()
      FROM unnest(%(ids)s::uuid[], %(events)s::uuid[], %(sequences)s::bigint[],
                  %(replays_of)s::uuid[]) AS new (id, event_id, sequence, replay_of)
      JOIN stored_events AS e ON e.tenant_id = %(tenant)s AND e.id = new.event_id
     CROSS JOIN (SELECT CASE WHEN held_since IS NULL OR %(job)s::uuid IS NULL THEN %(priority)s
                             ELSE {PRIORITY_BULK} END::smallint AS priority
                   FROM lanes WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s) AS lane
     WHERE e.id = ANY (%(events)s)
    RETURNING id
), counted AS (
    SELECT count(*) AS n, array_agg(id) AS ids FROM made
)
UPDATE lanes
   SET replays_accepted = replays_accepted + counted.n, replays_open = replays_open + counted.n,
       due_at = least(due_at, CASE WHEN %(urgent)s THEN clock_timestamp()
                                   ELSE greatest(clock_timestamp(), paused_until) END)
  FROM counted WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
RETURNING counted.ids
"""


def send(
    session: Session,
    lane: LaneKey,
    due: Sequence[Source],
    priority: int,
    job_id: UUID | None = None,
) -> list[UUID]:
    """Create a replay of each source whose event is still kept, on a locked lane; return them."""
    made = cursor(session, scalar_row).execute(
        _REPLAY,
        {
            "tenant": lane[0],
            "webhook": lane[1],
            "job": job_id,
            "priority": priority,
            "urgent": priority == PRIORITY_URGENT,
            "ids": sorted(ids.new() for _ in due),
            "events": [source.event_id for source in due],
            "sequences": [source.sequence for source in due],
            "replays_of": [source.replay_of for source in due],
        },
    )
    wakeups.ring_lanes(session, [lane])
    return made.fetchone() or []


# The counts of `count_outcomes`.
COUNTS = (
    *("sent", "succeeded", "failed_same", "failed_otherwise"),
    *("cancelled", "waiting", "retrying"),
)
# A delivery of an earlier release has no fingerprint: its replay counts in `failed_otherwise`.
_OUTCOMES = """
SELECT count(*) AS sent,
       count(*) FILTER (WHERE r.status = 'succeeded') AS succeeded,
       count(*) FILTER (WHERE r.status = 'failed' AND s.same) AS failed_same,
       count(*) FILTER (WHERE r.status = 'failed' AND s.same IS NOT TRUE) AS failed_otherwise,
       count(*) FILTER (WHERE r.status = 'cancelled') AS cancelled,
       count(*) FILTER (WHERE r.finished_at IS NULL) AS waiting,
       count(*) FILTER (WHERE r.finished_at IS NULL AND r.failure IS NOT NULL) AS retrying
  FROM deliveries AS r
  LEFT JOIN LATERAL (
    SELECT o.failure = r.failure AS same FROM deliveries AS o
     WHERE r.status = 'failed' AND o.tenant_id = r.tenant_id AND o.id = r.replay_of) AS s ON true
 WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.job_id = (SELECT %(job)s::uuid)
   AND r.id >= %(oldest)s AND NOT (r.status = 'cancelled' AND r.attempts = 0)
"""


def count_outcomes(session: Session, job: Job) -> dict[str, int]:
    """Count a job's deliveries; `sent` sums the rest but `retrying`, part of `waiting`.

    `failed_same` failed with the same fingerprint as the delivery that they replay. Deliveries
    withdrawn before their first attempt are not counted.
    """
    wanted = {"tenant": job.tenant_id, "job": job.id, "oldest": earliest_id(job.created_at)}
    found = cursor(session, dict_row).execute(_OUTCOMES, wanted).fetchone()
    assert found is not None  # noqa: S101  # an aggregate always has a row
    return found


def take_back(session: Session, job: Job, webhooks: Sequence[UUID]) -> None:
    """Lock lanes in the order of ids, as all do, and cancel what the job never sent there."""
    lanes.lock(session, [(job.tenant_id, webhook) for webhook in sorted(webhooks)])
    for webhook in webhooks:
        cancelling.withdraw(session, job.tenant_id, webhook, job.id)


_UNSENT = """
SELECT count(*) FROM (
    SELECT FROM open_deliveries
     WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = (SELECT %(webhook)s::uuid)
       AND priority = %(priority)s AND NOT fresh AND attempts = 0
       AND next_attempt_at <= clock_timestamp() + interval '30 s'
     ORDER BY next_attempt_at LIMIT %(most)s) AS found
"""


def unsent(session: Session, tenant_id: UUID, webhook_id: UUID, priority: int, most: int) -> int:
    """Return how many deliveries of a priority wait for their first attempt, up to `most`."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "priority": priority, "most": most}
    return cursor(session, scalar_row).execute(_UNSENT, wanted).fetchone() or 0
