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
_MINE = f"""
WITH held AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY slot) AS place FROM {_SLOTS}
     WHERE lease_until > clock_timestamp()
), mine AS (
    SELECT slot, version FROM held WHERE holder = %(holder)s AND place <= %(allowed)s
)
"""
_KEEP = f"""
{_MINE}
UPDATE lane_slots AS s SET lease_until = clock_timestamp() + %(lease)s
 WHERE s.tenant_id = %(tenant)s AND s.webhook_id = %(webhook)s
   AND s.slot = (SELECT slot FROM mine) AND s.version = (SELECT version FROM mine)
RETURNING s.slot AS number, (SELECT count(*) FROM held) AS held
"""
_IS_KEPT = f"{_MINE} SELECT 1 FROM mine"
_FREE = f"""
WITH mine AS MATERIALIZED (
    SELECT slot, version FROM {_SLOTS} WHERE holder = %(holder)s
)
UPDATE lane_slots AS s SET holder = NULL, lease_until = NULL
 WHERE s.tenant_id = %(tenant)s AND s.webhook_id = %(webhook)s
   AND s.slot = (SELECT slot FROM mine) AND s.version = (SELECT version FROM mine)
"""


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
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "holder": holder}
    cursor(session).execute(_FREE, wanted)


def provide(session: Tx, tenant_id: UUID, webhook_id: UUID, slots: int) -> None:
    """Make sure that the lane has at least `slots` rows; the lane's limit still bounds use."""
    cursor(session).execute(
        "INSERT INTO lane_slots (tenant_id, webhook_id, slot)"
        " SELECT %(tenant)s, %(webhook)s, n FROM generate_series(0, %(slots)s - 1) AS n"
        "  WHERE n NOT IN (SELECT slot FROM present_slots(%(tenant)s, %(webhook)s))",
        {"tenant": tenant_id, "webhook": webhook_id, "slots": slots},
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
