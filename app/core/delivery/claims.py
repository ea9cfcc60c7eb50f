"""Claims deliveries under a lease, and hands them back; `outcomes` records results.

A claim is one conditional UPDATE that adds 1 to `claim_no` and sets `lease_until`: when that is
over, a dead worker's row is due again by itself. Every later write names its `claim_no`: a worker
whose lease was taken over changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row

from app.core.delivery.events import PRIORITY_BULK, PRIORITY_URGENT
from app.core.delivery.lanes.lanes import Lane
from app.database import Tx, cursor

LEASE = timedelta(seconds=30)
# A delivery whose worker died after each of this many claims fails as `worker_lost`.
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
        """Its position in the retry schedule, from 1; unscheduled attempts do not count."""
        return max(1, self.attempt - self.unscheduled)


_CLAIM = "SELECT * FROM claim_deliveries(%s, %s, %s::integer, %s::smallint, %s)"


def claim(tx: Tx, lane: Lane, limit: int) -> Callable[[], list[Claimed]]:
    """Lease up to `limit` due rows of a locked lane, most urgent first, then the longest due.

    Returns a function that reads them, in sequence order: a `RawTransaction` pipelines the
    statement with those that follow, including COMMIT. Unnumbered events get the next sequence
    numbers. The lane must have been locked by an earlier statement. A paused or held lane yields
    urgent rows only.
    """
    lowest = PRIORITY_URGENT if lane.paused or lane.held else PRIORITY_BULK
    claimed = cursor(tx, class_row(Claimed)).execute(
        _CLAIM, (lane.tenant_id, lane.webhook_id, limit, lowest, LEASE)
    )
    return lambda: sorted(claimed, key=lambda row: (row.priority, row.sequence or 0))


_HAND_BACK = """
UPDATE open_deliveries AS d
   SET status = CASE WHEN attempts = 0 THEN 'pending' ELSE 'retrying' END, lease_until = NULL
  FROM unnest(%(ids)s::uuid[], %(claims)s::bigint[]) AS mine (id, claim_no)
 WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.id = mine.id
   AND d.claim_no = mine.claim_no AND d.lease_until IS NOT NULL
RETURNING d.id
"""


def hand_back(session: Tx, tenant_id: UUID, unsent: Sequence[Claimed]) -> int:
    """Release unsent claimed rows, due at once; return how many this claim still held."""
    wanted = {
        "tenant": tenant_id,
        "ids": [row.id for row in unsent],
        "claims": [row.claim_no for row in unsent],
    }
    return len(cursor(session).execute(_HAND_BACK, wanted).fetchall())
