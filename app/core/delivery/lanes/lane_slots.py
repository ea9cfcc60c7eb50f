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
    """A slot that is held: its number, and how many of its lane are held, this one included."""

    number: int
    held: int


# In a `RawTransaction` a statement goes out with those that follow: this waits for its answer.
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

# How many of the lane's holders come before this one.
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
    """Take a free slot of a locked lane for `holder`; return what reads it.

    None while as many are held as allowed.
    """
    return _slot(session, _TAKE, lane, holder)


def keep(session: Tx, lane: Lane, holder: UUID) -> SlotReader:
    """Renew the lease of the holder's slot of a locked lane; return what reads the slot.

    None when it was lost meanwhile, or when fewer than those before it are allowed by now.
    """
    return _slot(session, _KEEP, lane, holder)


def may_keep(session: Tx, lane: Lane, holder: UUID) -> bool:
    """Say whether `keep` would renew the lease now; the lane need not be locked."""
    return cursor(session).execute(_IS_KEPT, _values(lane, holder)).fetchone() is not None


def free(session: Tx, tenant_id: UUID, webhook_id: UUID, holder: UUID) -> None:
    """Give the holder's slot of a locked lane back."""
    cursor(session).execute(
        "UPDATE lane_slots SET holder = NULL, lease_until = NULL"
        " WHERE tenant_id = %s AND webhook_id = %s AND holder = %s",
        (tenant_id, webhook_id, holder),
    )


def provide(session: Tx, tenant_id: UUID, webhook_id: UUID, slots: int) -> None:
    """Make sure that the lane has `slots` slots at least; more are never taken than it allows."""
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
