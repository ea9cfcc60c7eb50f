"""Slots of a lane: leased by each turn that sends, so POSTs in flight are bounded.

A slot is taken only while fewer are held than the lane allows, counted under the lane's lock. A
held slot is never taken away; its holder leaves when it is beyond a lowered limit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias
from uuid import UUID

from psycopg.rows import class_row

from app.core.delivery.lanes.lanes import Lane
from app.database import Tx, cursor

LEASE = timedelta(seconds=30)


@dataclass(frozen=True)
class Slot:
    """A held slot: its number, and how many slots of its lane are held, including this one."""

    number: int
    held: int


# A `RawTransaction` pipelines statements: calling this waits for the result.
SlotReader: TypeAlias = Callable[[], Slot | None]

_TAKE = """
WITH held AS (
    SELECT count(*) FROM lane_slots
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND lease_until > clock_timestamp()
)
UPDATE lane_slots SET holder = %(holder)s, lease_until = clock_timestamp() + %(lease)s
  FROM held
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND held.count < %(allowed)s
   AND slot = (
    SELECT slot FROM lane_slots
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
       AND (holder IS NULL OR lease_until <= clock_timestamp())
     ORDER BY slot LIMIT 1)
RETURNING slot AS number, held.count + 1 AS held
"""

# The number of held slots with a lower number than this one.
_BEFORE = """
(SELECT count(*) FROM lane_slots AS other
  WHERE other.tenant_id = mine.tenant_id AND other.webhook_id = mine.webhook_id
    AND other.lease_until > clock_timestamp() AND other.slot < mine.slot)
"""
_MINE = f"""
 WHERE mine.tenant_id = %(tenant)s AND mine.webhook_id = %(webhook)s AND mine.holder = %(holder)s
   AND mine.lease_until > clock_timestamp() AND {_BEFORE} < %(allowed)s
"""
_KEEP = f"""
UPDATE lane_slots AS mine SET lease_until = clock_timestamp() + %(lease)s
{_MINE}
RETURNING mine.slot AS number, (
    SELECT count(*) FROM lane_slots
     WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
       AND lease_until > clock_timestamp()) AS held
"""
_IS_KEPT = f"SELECT 1 FROM lane_slots AS mine {_MINE}"


def take(session: Tx, lane: Lane, holder: UUID) -> SlotReader:
    """Take a free slot of a locked lane for `holder`; return the reader of the result.

    The reader returns None while the allowed number of slots is held.
    """
    return _slot(session, _TAKE, lane, holder)


def keep(session: Tx, lane: Lane, holder: UUID) -> SlotReader:
    """Renew the lease of the holder's slot of a locked lane; return the reader of the result.

    The reader returns None when the slot was lost, or is beyond a limit that was lowered.
    """
    return _slot(session, _KEEP, lane, holder)


def may_keep(session: Tx, lane: Lane, holder: UUID) -> bool:
    """Say whether `keep` would renew the lease now; the lane need not be locked."""
    return cursor(session).execute(_IS_KEPT, _values(lane, holder)).fetchone() is not None


def free(session: Tx, tenant_id: UUID, webhook_id: UUID, holder: UUID) -> None:
    """Free the holder's slot of a locked lane."""
    cursor(session).execute(
        "UPDATE lane_slots SET holder = NULL, lease_until = NULL"
        " WHERE tenant_id = %s AND webhook_id = %s AND holder = %s",
        (tenant_id, webhook_id, holder),
    )


def provide(session: Tx, tenant_id: UUID, webhook_id: UUID, slots: int) -> None:
    """Make sure that the lane has at least `slots` rows; the lane's limit still bounds use."""
    cursor(session).execute(
        "INSERT INTO lane_slots (tenant_id, webhook_id, slot)"
        " SELECT %s, %s, generate_series(0, %s - 1) ON CONFLICT DO NOTHING",
        (tenant_id, webhook_id, slots),
    )


def _slot(session: Tx, statement: str, lane: Lane, holder: UUID) -> SlotReader:
    return cursor(session, class_row(Slot)).execute(statement, _values(lane, holder)).fetchone


def _values(lane: Lane, holder: UUID) -> dict[str, object]:
    return {
        "tenant": lane.tenant_id,
        "webhook": lane.webhook_id,
        "holder": holder,
        "lease": LEASE,
        "allowed": lane.allowed,
    }
