"""A lane is a webhook's queue, or one of its several: its numbers, its pause, when it is due.

Every writer, also of its slots, takes the lane's row lock first (`load`): no gap in
a sequence, one holder per slot, one probe per pause. `lanes.due_at` is computed when a worker's
turn ends, and lowered when a row becomes due.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from psycopg.rows import class_row, scalar_row

from app import ids
from app.core import epochs
from app.core.delivery import hours
from app.core.delivery.lanes import lane_health, recovery
from app.database import Tx, cursor

NUMBER_AT_ONCE = 500


@dataclass(frozen=True)
class Lane:
    """A lane and its webhook as they were when the lane was locked, at the database's `now`."""

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
    held: bool
    paused_until: datetime | None
    pause_level: int
    slow_at: datetime | None
    concurrency: int
    latency_ms: float | None

    @property
    def number(self) -> int | None:
        """Its number among the webhook's lanes; None where there is but one."""
        number = ids.lane_number(self.webhook_id)
        return number if max(number, self.lanes) > 1 else None

    @property
    def allowed(self) -> int:
        """The limit of POSTs in flight: the adaptive concurrency, at most `max_in_flight`.

        One while the lane's pause allows only a probe.
        """
        return 1 if self.probes else min(self.concurrency, self.max_in_flight)

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


_LOAD = f"""
SELECT l.tenant_id, l.webhook_id, clock_timestamp() AS now, ({epochs.PRESENT}) AS epoch,
       w.sealed_target,
       w.sealed_secrets, l.receiver_since,
       w.max_in_flight, w.lanes, w.status = 'enabled' AND w.deleted_at IS NULL AS sends,
       EXISTS (SELECT FROM tenants AS t
                WHERE t.id = l.tenant_id AND t.suspended_at IS NOT NULL) AS suspended,
       l.held_since IS NOT NULL AS held,
       l.paused_until, l.pause_level, l.slow_at,
       l.concurrency, l.latency_ms
  FROM present_lanes l JOIN webhooks w ON w.tenant_id = l.tenant_id AND w.id = l.of_webhook
 WHERE l.tenant_id = %s AND l.webhook_id = %s
"""


_LOCK = """
SELECT 1 FROM lanes WHERE tenant_id = %s AND webhook_id = %s
 ORDER BY version DESC LIMIT 1 FOR NO KEY UPDATE
"""


def load(session: Tx, tenant_id: UUID, webhook_id: UUID, *, locked: bool = True) -> Lane | None:
    """Return the current lane; locks it until the transaction ends if `locked`.

    Two statements: a single one would see the webhook as of before the lock wait.
    """
    if locked:
        lock(session, tenant_id, webhook_id)
    return cursor(session, class_row(Lane)).execute(_LOAD, (tenant_id, webhook_id)).fetchone()


def lock(session: Tx, tenant_id: UUID, webhook_id: UUID) -> None:
    """Hold the lane's row lock until the transaction ends."""
    cursor(session).execute(_LOCK, (tenant_id, webhook_id))


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
        for lane in found:
            lock(session, tenant_id, lane)
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
    lock(session, tenant_id, webhook_id)
    return number_locked(session, tenant_id, webhook_id)


def number_if_free(session: Tx, tenant_id: UUID, webhook_id: UUID) -> int | None:
    """Do what `number` does, unless the lane's lock is taken: then return None at once."""
    free = cursor(session).execute(f"{_LOCK} SKIP LOCKED", (tenant_id, webhook_id))
    return number_locked(session, tenant_id, webhook_id) if free.fetchone() else None


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
           ring_at = CASE WHEN due.at <= clock_timestamp() THEN clock_timestamp() END
      FROM due
     WHERE l.tenant_id = %(tenant)s AND l.webhook_id = %(webhook)s
       AND l.version = (SELECT version FROM began)
       AND (due.at IS NOT NULL OR l.due_at IS NOT NULL OR l.ring_at IS NOT NULL)
)
SELECT coalesce(due.at <= began.now, false),
       began.recovering_since IS NOT NULL AND began.held_since IS NULL
       AND coalesce(began.paused_until <= began.now, true),
       began.recovering_since, began.receiver_since, began.concurrency, began.latency_ms
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


def reschedule(session: Tx, tenant_id: UUID, webhook_id: UUID) -> bool:
    """Compute when a locked lane is due next; return whether it is due already.

    A recovering lane with no due row brings waiting ones forward. The sweep rings a lane that is
    due already behind those that have waited longer for a ring, and any other once it is due.
    """
    wanted = {"tenant": tenant_id, "webhook": webhook_id}
    row = cursor(session).execute(_RESCHEDULE, wanted).fetchone()
    due, recovers, since, receiver_since, concurrency, latency_ms = row or (False,) * 6
    if due or not recovers:
        return bool(due)
    most = concurrency * lane_health.claim_size(latency_ms)
    moved = recovery.bring_forward(session, (tenant_id, webhook_id), most, since, receiver_since)
    if moved < most:
        cursor(session).execute(_RECOVERED, wanted)
    if moved:
        due_now(session, tenant_id, webhook_id)
    return moved > 0


def due_now(session: Tx, tenant_id: UUID, webhook_id: UUID) -> None:
    """Make the lane due now."""
    cursor(session).execute(_DUE_NOW, {"tenant": tenant_id, "webhook": webhook_id})


SLOT_LEASE = timedelta(seconds=30)


@dataclass(frozen=True)
class Slot:
    """A held slot: its number, and how many slots of its lane are held, including this one."""

    number: int
    held: int


# A `RawTransaction` pipelines statements: calling this waits for the result.
SlotReader: TypeAlias = Callable[[], Slot | None]

_SLOTS = "present_slots(%(tenant)s, %(webhook)s)"
_TAKE = f"""
WITH slots AS MATERIALIZED (
    SELECT * FROM {_SLOTS}
), held AS (
    SELECT count(*) FROM slots WHERE lease_until > clock_timestamp()
), free AS (
    SELECT slot, version FROM slots WHERE holder IS NULL OR lease_until <= clock_timestamp()
     ORDER BY slot LIMIT 1
)
UPDATE lane_slots AS s SET holder = %(holder)s, lease_until = clock_timestamp() + %(lease)s
  FROM held
 WHERE s.tenant_id = %(tenant)s AND s.webhook_id = %(webhook)s AND held.count < %(allowed)s
   AND s.slot = (SELECT slot FROM free) AND s.version = (SELECT version FROM free)
RETURNING s.slot AS number, held.count + 1 AS held
"""

# A slot counts that is held with fewer than the allowed number of lower ones.
_KEEP = f"""
WITH held AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY slot) AS place FROM {_SLOTS}
     WHERE lease_until > clock_timestamp()
), mine AS (
    SELECT slot, version FROM held WHERE holder = %(holder)s AND place <= %(allowed)s
)
UPDATE lane_slots AS s SET lease_until = clock_timestamp() + %(lease)s
 WHERE s.tenant_id = %(tenant)s AND s.webhook_id = %(webhook)s
   AND s.slot = (SELECT slot FROM mine) AND s.version = (SELECT version FROM mine)
RETURNING s.slot AS number, (SELECT count(*) FROM held) AS held
"""
_FREE = f"""
WITH mine AS MATERIALIZED (
    SELECT slot, version FROM {_SLOTS} WHERE holder = %(holder)s
)
UPDATE lane_slots AS s SET holder = NULL, lease_until = NULL
 WHERE s.tenant_id = %(tenant)s AND s.webhook_id = %(webhook)s
   AND s.slot = (SELECT slot FROM mine) AND s.version = (SELECT version FROM mine)
"""


def take_slot(session: Tx, lane: Lane, holder: UUID) -> SlotReader:
    """Take a free slot of a locked lane; the reader's None: the allowed number is held."""
    return _slot(session, _TAKE, lane, holder)


def keep_slot(session: Tx, lane: Lane, holder: UUID) -> SlotReader:
    """Renew the lease of the holder's slot; the reader's None: lost, or beyond a lowered limit."""
    return _slot(session, _KEEP, lane, holder)


def free_slot(session: Tx, tenant_id: UUID, webhook_id: UUID, holder: UUID) -> None:
    """Free the holder's slot of a locked lane."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "holder": holder}
    cursor(session).execute(_FREE, wanted)


def provide_slots(session: Tx, tenant_id: UUID, webhook_id: UUID, slots: int) -> None:
    """Make sure that the lane has at least `slots` rows; the lane's limit still bounds use."""
    cursor(session).execute(
        "INSERT INTO lane_slots (tenant_id, webhook_id, slot)"
        " SELECT %(tenant)s, %(webhook)s, n FROM generate_series(0, %(slots)s - 1) AS n"
        "  WHERE n NOT IN (SELECT slot FROM present_slots(%(tenant)s, %(webhook)s))",
        {"tenant": tenant_id, "webhook": webhook_id, "slots": slots},
    )


def _slot(session: Tx, statement: str, lane: Lane, holder: UUID) -> SlotReader:
    wanted = {
        "tenant": lane.tenant_id,
        "webhook": lane.webhook_id,
        "holder": holder,
        "lease": SLOT_LEASE,
        "allowed": lane.allowed,
    }
    return cursor(session, class_row(Slot)).execute(statement, wanted).fetchone
