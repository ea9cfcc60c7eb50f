"""A lane is a webhook's queue, or one of its several: its numbers, its pause, when it is due.

Every writer, also of its slots, takes the lane's row lock first (`load`): no gap in
a sequence, one holder per slot, one probe per pause. `lanes.due_at` is computed when a worker's
turn ends, and lowered when a row becomes due.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, scalar_row

from app import ids
from app.core import epochs
from app.core.delivery import hours
from app.core.delivery.lanes import lane_health, recovery
from app.core.delivery.lanes.lane_health import Concurrency, Health
from app.database import Tx, cursor

NUMBER_AT_ONCE = 500

LaneKey = tuple[UUID, UUID]
"""A tenant's id and the lane's."""


@dataclass(frozen=True, kw_only=True)
class Lane(Health, Concurrency):
    """A lane and its webhook as they were when the lane was locked, at the database's `now`.

    `receiver_since` is when its URL or headers were set last; None: when it was made.
    """

    tenant_id: UUID
    webhook_id: UUID
    now: datetime
    epoch: UUID
    sealed_target: bytes
    sealed_secrets: bytes
    receiver_since: datetime | None
    max_in_flight: int
    lanes: int
    sends: bool
    suspended: bool
    held_since: datetime | None
    slot_holders: Sequence[int]
    slot_leases: Sequence[datetime]

    @property
    def number(self) -> int | None:
        """Its number among the webhook's lanes; None where there is but one."""
        number = ids.lane_number(self.webhook_id)
        return number if max(number, self.lanes) > 1 else None

    @property
    def health(self) -> Health:
        """What outcomes have made of it."""
        return Health(*(getattr(self, each.name) for each in fields(Health)))

    @property
    def learned(self) -> Concurrency:
        """How many POSTs it may have out, and how long they took."""
        return Concurrency(self.concurrency, self.halved_at, self.latency_ms)

    @property
    def allowed(self) -> int:
        """The limit of POSTs in flight: the adaptive concurrency, at most `max_in_flight`.

        One while the lane's pause allows only a probe.
        """
        return 1 if self.probes else min(self.concurrency, self.max_in_flight)

    @property
    def held(self) -> bool:
        """Whether its tenant holds it."""
        return self.held_since is not None

    @property
    def slow(self) -> bool:
        """Whether a POST took over a second, with no quicker success since."""
        return self.slow_at is not None

    @property
    def paused(self) -> bool:
        """Whether the lane waits before its next probe."""
        return self.paused_until is not None and self.paused_until > self.now

    @property
    def probes(self) -> bool:
        """Whether the lane's pause allows only one attempt at a time (a probe)."""
        return self.paused or self.pause_level > 0


_WANTED = "unnest(%s::uuid[], %s::uuid[]) AS wanted (tenant_id, webhook_id)"
LEARNED = tuple(each.name for each in (*fields(Health), *fields(Concurrency)))
# A separate statement: one with the lock would see the webhook as of before the lock wait.
_LOAD = f"""
SELECT l.tenant_id, l.webhook_id, clock_timestamp() AS now, ({epochs.PRESENT}) AS epoch,
       w.sealed_target, w.sealed_secrets, l.receiver_since, w.max_in_flight, w.lanes,
       w.status = 'enabled' AND w.deleted_at IS NULL AS sends,
       EXISTS (SELECT FROM tenants AS t
                WHERE t.id = l.tenant_id AND t.suspended_at IS NOT NULL) AS suspended,
       l.held_since, l.slot_holders, l.slot_leases,
       {", ".join(f"l.{name}" for name in LEARNED)}
  FROM {_WANTED}
  JOIN present_lanes AS l
    ON l.tenant_id = wanted.tenant_id AND l.webhook_id = wanted.webhook_id
  JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = l.of_webhook
"""
# One after the other, as they are wanted.
_LOCK = f"""
SELECT FROM {_WANTED} CROSS JOIN LATERAL (
    SELECT FROM lanes AS l
     WHERE l.tenant_id = wanted.tenant_id AND l.webhook_id = wanted.webhook_id
     ORDER BY l.version DESC LIMIT 1 FOR NO KEY UPDATE {{or_not}}) AS locked
"""


def load(session: Tx, tenant_id: UUID, webhook_id: UUID, *, locked: bool = True) -> Lane | None:
    """Return the current lane; locks it until the transaction ends if `locked`."""
    key = (tenant_id, webhook_id)
    return load_each(session, [key], locked=locked).get(key)


def load_each(session: Tx, keys: Sequence[LaneKey], *, locked: bool = True) -> dict[LaneKey, Lane]:
    """Return lanes as `load` does; `keys` are locked in their order, which all sort alike."""
    if locked:
        lock(session, keys)
    found = cursor(session, class_row(Lane)).execute(_LOAD, _columns(keys)).fetchall()
    return {(lane.tenant_id, lane.webhook_id): lane for lane in found}


def lock(session: Tx, keys: Sequence[LaneKey]) -> None:
    """Hold the lanes' row locks until the transaction ends."""
    cursor(session).execute(_LOCK.format(or_not="").encode(), _columns(keys))


def _columns(keys: Sequence[LaneKey]) -> tuple[list[UUID], list[UUID]]:
    return [key[0] for key in keys], [key[1] for key in keys]


_OF_WEBHOOK = """
SELECT id FROM webhook_lanes WHERE tenant_id = %s AND webhook_id = %s ORDER BY id
"""


def of_webhook(session: Tx, tenant_id: UUID, webhook_id: UUID) -> list[UUID]:
    """Return the keys of a webhook's lanes, as they are locked; none for an unknown webhook."""
    return cursor(session, scalar_row).execute(_OF_WEBHOOK, (tenant_id, webhook_id)).fetchall()


def on_each(
    parts: Sequence[str], name: str, keys: Sequence[UUID], values: dict[str, object]
) -> list[str]:
    """Return parts of a statement about one lane, its parameter `name`, for each of several.

    Adds their parameters to `values`. So each is read in the order of its index.
    """
    found = list(parts)
    for number, key in enumerate(keys[1:], 1):
        found += [part.replace(f"%({name})s", f"%({name}_{number})s") for part in parts]
        values[f"{name}_{number}"] = key
    if keys:
        values[name] = keys[0]
    return found


def lock_all(session: Tx, tenant_id: UUID, webhook_id: UUID) -> None:
    """Lock all lanes of a webhook in the order of their keys, as all do."""
    while True:
        found = of_webhook(session, tenant_id, webhook_id)
        cursor(session).execute("SAVEPOINT lanes")
        lock(session, [(tenant_id, lane) for lane in found])
        if of_webhook(session, tenant_id, webhook_id) == found:
            return
        # Lanes were made while this waited, and their keys may come before: all are locked anew.
        cursor(session).execute("ROLLBACK TO SAVEPOINT lanes")


# The open rows of a level of urgency, as `claim_deliveries` finds them.
_OF_LEVEL = """
d.tenant_id = (SELECT %(tenant)s::uuid) AND d.webhook_id = (SELECT %(webhook)s::uuid)
AND d.priority = level.priority AND d.fresh = level.fresh
AND d.next_attempt_at >= (SELECT open_from FROM began)[level.place]
"""
# `(SELECT …)` hides a value from the planner (docs/performance.md).
_ACCEPTED = """
    SELECT %(tenant)s::uuid AS tenant_id, %(webhook)s::uuid AS webhook_id,
           accepted_hour(created_at) AS at, count(*) AS accepted
      FROM numbered GROUP BY 3"""
_NUMBER = f"""
WITH began AS MATERIALIZED (
    SELECT open_from, version, next_sequence FROM present_lanes
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
), unnumbered AS MATERIALIZED (
    SELECT first.*, row_number() OVER (ORDER BY first.id) AS place
      FROM (SELECT picked.* FROM open_levels() AS level CROSS JOIN LATERAL (
                SELECT d.ctid AS at, d.id, d.next_attempt_at, level.priority
                  FROM open_deliveries AS d
                 WHERE {_OF_LEVEL} AND d.sequence IS NULL
                 ORDER BY d.next_attempt_at LIMIT %(limit)s) AS picked
             WHERE level.fresh LIMIT %(limit)s) AS first
), numbered AS (
    UPDATE open_deliveries AS d
       SET sequence = l.next_sequence - 1 + u.place, feed_sequence = l.next_sequence - 1 + u.place,
           fresh = false
      FROM unnumbered AS u, began AS l
     WHERE d.ctid = u.at
    RETURNING d.created_at
), {hours.added(_ACCEPTED, ["accepted"])}
UPDATE lanes SET next_sequence = next_sequence + found.count,
                 events_open = events_open + found.count,
                 open_from = ARRAY[least(open_from[1], found.urgent), open_from[2],
                                   least(open_from[3], found.live)] || open_from[4:],
                 due_at = least(due_at, greatest(clock_timestamp(), paused_until))
  FROM (SELECT count(*), min(next_attempt_at) FILTER (WHERE priority = 0) AS urgent,
               min(next_attempt_at) FILTER (WHERE priority = 1) AS live FROM unnumbered) AS found
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
   AND version = (SELECT version FROM began) AND found.count > 0
RETURNING found.count
"""


def number(session: Tx, tenant_id: UUID, webhook_id: UUID) -> int:
    """Assign the next sequence numbers to up to 500 unnumbered rows; return how many.

    Locks the lane before it reads rows: else two concurrent calls would leave gaps. Makes the lane
    due too, should this worker die: the sweep finds numbered rows only through their due lane.
    """
    lock(session, [(tenant_id, webhook_id)])
    return number_locked(session, tenant_id, webhook_id)


def number_if_free(session: Tx, tenant_id: UUID, webhook_id: UUID) -> int | None:
    """Do what `number` does, unless the lane's lock is taken: then return None at once."""
    query = _LOCK.format(or_not="SKIP LOCKED").encode()
    free = cursor(session).execute(query, _columns([(tenant_id, webhook_id)]))
    return number_locked(session, tenant_id, webhook_id) if free.fetchall() else None


def number_locked(session: Tx, tenant_id: UUID, webhook_id: UUID) -> int:
    """Do what `number` does, in a transaction that holds the lane's lock already."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "limit": NUMBER_AT_ONCE}
    return cursor(session, scalar_row).execute(_NUMBER, wanted).fetchone() or 0


_RESCHEDULE = """
WITH began AS MATERIALIZED (
    SELECT *, clock_timestamp() AS now FROM present_lanes
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
), open AS (
    SELECT urgent, patient FROM next_due(%(tenant)s, %(webhook)s)
), due AS (
    SELECT least(open.urgent, CASE WHEN began.held_since IS NULL THEN least(
               CASE WHEN open.patient IS NOT NULL
                    THEN greatest(open.patient, began.paused_until) END,
               CASE WHEN began.recovering_since IS NOT NULL AND began.paused_until > began.now
                    THEN began.paused_until END) END) AS at
      FROM open, began
), written AS (
    UPDATE lanes AS l
       SET due_at = due.at,
           ring_at = CASE WHEN due.at <= clock_timestamp() THEN clock_timestamp() END,
           (slot_holders, slot_leases) = (
               SELECT coalesce(array_agg(holder), '{}'), coalesce(array_agg(lease), '{}')
                 FROM unnest(l.slot_holders, l.slot_leases) AS slot (holder, lease)
                WHERE holder IS DISTINCT FROM %(leaves)s::bigint)
      FROM due
     WHERE l.tenant_id = %(tenant)s AND l.webhook_id = %(webhook)s
       AND l.version = (SELECT version FROM began)
       AND (due.at IS NOT NULL OR l.due_at IS NOT NULL OR l.ring_at IS NOT NULL
            OR %(leaves)s::bigint = ANY (l.slot_holders))
)
SELECT coalesce(due.at <= began.now, false),
       began.recovering_since IS NOT NULL AND began.held_since IS NULL
       AND coalesce(began.paused_until <= began.now, true),
       began.recovering_since, began.recovered_through, began.receiver_since, began.concurrency,
       began.latency_ms
  FROM due, began
"""
# Of the newest version alone: a join could read all that an old snapshot keeps.
_NEWEST = """
tenant_id = %(tenant)s AND webhook_id = %(webhook)s
AND version = (SELECT version FROM present_lanes
                WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s)
"""
_RECOVERED = f"UPDATE lanes SET recovering_since = NULL WHERE {_NEWEST}"
_DUE_NOW = f"UPDATE lanes SET due_at = least(due_at, clock_timestamp()) WHERE {_NEWEST}"
_FORWARD = f"UPDATE lanes SET recovered_through = %(through)s WHERE {_NEWEST}"


def reschedule(
    session: Tx, tenant_id: UUID, webhook_id: UUID, *, leaves: int | None = None
) -> bool:
    """Compute when a locked lane is due next; return whether it is due already.

    The slot of a holder that `leaves` is free from now on.
    A recovering lane with no due row brings waiting ones forward. The sweep rings a lane that is
    due already behind those that have waited longer for a ring, and any other once it is due.
    """
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "leaves": leaves}
    row = cursor(session).execute(_RESCHEDULE, wanted).fetchone()
    due, recovers, since, through, receiver_since, concurrency, latency_ms = row or (False,) * 7
    if due or not recovers:
        return bool(due)
    most, lane = concurrency * lane_health.claim_size(latency_ms), (tenant_id, webhook_id)
    moved, last = recovery.bring_forward(session, lane, most, since, through, receiver_since)
    if moved < most and through is not None:
        # What was passed over since it waited as its receiver asked, and does so no longer.
        left = most - moved
        more, last = recovery.bring_forward(session, lane, left, since, None, receiver_since)
        moved += more
    if moved < most:
        cursor(session).execute(_RECOVERED, wanted)
    if moved:
        cursor(session).execute(_FORWARD, wanted | {"through": last})
        due_now(session, tenant_id, webhook_id)
    return moved > 0


def due_now(session: Tx, tenant_id: UUID, webhook_id: UUID) -> None:
    """Make the lane due now."""
    cursor(session).execute(_DUE_NOW, {"tenant": tenant_id, "webhook": webhook_id})


SLOT_LEASE = timedelta(seconds=30)


@dataclass(frozen=True)
class Slot:
    """A held slot: its place, and how many slots of its lane are held, including this one."""

    number: int
    held: int


_HOLD = f"""
UPDATE lanes SET slot_holders = %(holders)s, slot_leases = %(leases)s WHERE {_NEWEST}
"""


def hold_slot(session: Tx, lane: Lane, holder: int) -> Slot | None:
    """Take a slot of a lane that is locked since it was loaded, or renew the holder's lease.

    None if `lane.allowed` others are held already: those that were taken last are lost where that
    was lowered, and one whose lease has ended is as good as new.
    """
    slots = zip(lane.slot_holders, lane.slot_leases, strict=True)
    held = {each: lease for each, lease in slots if lease > lane.now}
    held[holder] = lane.now + SLOT_LEASE
    number = [*held].index(holder)
    if number >= lane.allowed:
        return None
    wanted: dict[str, Any] = {"tenant": lane.tenant_id, "webhook": lane.webhook_id}
    wanted |= {"holders": [*held], "leases": [*held.values()]}
    cursor(session).execute(_HOLD, wanted)
    return Slot(number, len(held))
