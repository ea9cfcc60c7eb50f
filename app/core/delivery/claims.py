"""Claims deliveries under a lease, and hands them back; `outcomes` records results.

A claim is one conditional UPDATE that adds 1 to `claim_no`; `next_attempt_at` becomes the lease's
end, so a dead worker's row is due again by itself. Every later write names its `claim_no`: a worker
whose lease was taken over changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from uuid import UUID

from psycopg.rows import class_row

from app.core.delivery.events import PRIORITY_BULK, PRIORITY_URGENT
from app.core.delivery.lanes.lanes import Lane
from app.database import Tx, cursor

LEASE = timedelta(seconds=30)
# A delivery whose worker died at each of so many claims fails as `worker_lost`.
CLAIMS_LOST_AT_MOST = 5


@dataclass(frozen=True)
class Claimed:
    """A delivery that this worker alone may send, until the lease ends.

    `taken_over` says that an earlier claim's lease ended without an outcome; `claims_lost` counts
    such claims since the last outcome.
    """

    id: UUID
    event_id: UUID
    kind: str
    priority: int
    sequence: int | None
    attempts: int
    unscheduled: int
    claim_no: int
    claims_lost: int
    taken_over: bool
    created_at: datetime
    payload: bytes

    @property
    def attempt(self) -> int:
        """The number of the attempt about to be made, from 1."""
        return self.attempts + 1

    @property
    def scheduled_attempt(self) -> int:
        """Its place in the schedule, from 1: attempts ahead of the schedule do not count.

        Earlier releases counted one of those each time that it was asked for.
        """
        return max(1, self.attempt - self.unscheduled)


_CLAIM = "SELECT * FROM claim_deliveries(%s, %s, %s, %s::integer, %s::smallint, %s)"


def claim(
    tx: Tx, lane: Lane, limit: int, slot_holder: UUID | None = None
) -> Callable[[], list[Claimed]]:
    """Lease up to `limit` due rows of a locked lane, most urgent first, then the longest due.

    Returns what reads them, in the order of their sequence: in a `RawTransaction` the statement
    goes out with the next ones, the COMMIT too. Events that have no sequence number get the next
    ones. The lane must have been locked by a statement of its own. A paused or held lane gives only
    what is urgent; with a `slot_holder` nothing is claimed unless it holds a slot of the lane.
    """
    lowest = PRIORITY_URGENT if lane.paused or lane.held else PRIORITY_BULK
    claimed = cursor(tx, class_row(Claimed)).execute(
        _CLAIM, (lane.tenant_id, lane.webhook_id, slot_holder, limit, lowest, LEASE)
    )
    return cache(lambda: sorted(claimed, key=lambda row: (row.priority, row.sequence or 0)))


_HAND_BACK = """
UPDATE deliveries AS d
   SET status = CASE WHEN attempts = 0 THEN 'pending' ELSE 'retrying' END,
       next_attempt_at = clock_timestamp()
  FROM unnest(%(ids)s::uuid[], %(claims)s::bigint[]) AS mine (id, claim_no)
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.id = mine.id
   AND d.claim_no = mine.claim_no AND d.status = 'sending'
"""


def hand_back(session: Tx, tenant_id: UUID, unsent: Sequence[Claimed]) -> int:
    """Give back rows that were claimed and not sent, due at once; return how many were ours."""
    if not unsent:
        return 0
    return (
        cursor(session)
        .execute(
            _HAND_BACK,
            {
                "tenant": tenant_id,
                "ids": [row.id for row in unsent],
                "claims": [row.claim_no for row in unsent],
            },
        )
        .rowcount
    )


def hold_for_probe(session: Tx, lane: Lane, until: timedelta) -> None:
    """Keep everyone else out of a lane whose probe is on its way."""
    cursor(session).execute(
        "UPDATE lanes SET paused_until = greatest(paused_until, clock_timestamp() + %s)"
        " WHERE tenant_id = %s AND webhook_id = %s",
        (until, lane.tenant_id, lane.webhook_id),
    )


@dataclass(frozen=True)
class Moment:
    """The database's time carried on by this process's steady clock between two readings."""

    database: datetime
    monotonic: float

    def at(self, monotonic: float) -> datetime:
        """Return the database's time at a reading of `time.monotonic()`, in seconds."""
        return self.database + timedelta(seconds=monotonic - self.monotonic)
