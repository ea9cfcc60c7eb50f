"""The lanes that outcomes change: read under their locks, and written together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from itertools import islice
from uuid import UUID

from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import Session

from app.core.delivery.lanes.lane_health import Concurrency, Health
from app.database import cursor
from app.models import Lane

LaneKey = tuple[UUID, UUID]


@dataclass(frozen=True)
class LockedLane:
    """A lane and its webhook's settings, locked at the database's `now`.

    `receiver_since` is when its URL or headers were set last; None: when it was made.
    """

    health: Health
    learned: Concurrency
    tenant_id: UUID
    webhook_id: UUID
    receiver_since: datetime | None
    now: datetime
    max_in_flight: int


_HEALTH = tuple(each.name for each in fields(Health))
_LEARNED = tuple(each.name for each in fields(Concurrency))

_WANTED = "unnest(%s::uuid[], %s::uuid[]) AS wanted (tenant_id, webhook_id)"

# One after the other, as they are wanted.
_LOCK = f"""
SELECT FROM {_WANTED} CROSS JOIN LATERAL (
    SELECT FROM lanes AS l
     WHERE l.tenant_id = wanted.tenant_id AND l.webhook_id = wanted.webhook_id
     ORDER BY l.version DESC LIMIT 1 FOR NO KEY UPDATE) AS locked
"""

# A separate statement: one with the lock would see the webhook as of before the lock wait.
_READ = f"""
SELECT {", ".join(f"l.{name}" for name in (*_HEALTH, *_LEARNED))},
       l.tenant_id, l.webhook_id, l.receiver_since, clock_timestamp(), w.max_in_flight
  FROM {_WANTED}
  JOIN present_lanes AS l
    ON l.tenant_id = wanted.tenant_id AND l.webhook_id = wanted.webhook_id
  JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = l.of_webhook
"""


def lock(session: Session, keys: Sequence[LaneKey]) -> dict[LaneKey, LockedLane]:
    """Lock lanes in the order of `keys`, which every caller sorts alike, and return them."""
    wanted = ([key[0] for key in keys], [key[1] for key in keys])
    cursor(session).execute(_LOCK, wanted)
    found = {}
    for row in cursor(session).execute(_READ, wanted):
        columns = iter(row)
        health = Health(*islice(columns, len(_HEALTH)))
        state = LockedLane(health, Concurrency(*islice(columns, len(_LEARNED))), *columns)
        found[state.tenant_id, state.webhook_id] = state
    return found


@dataclass
class LaneChange:
    """A lane's change by outcomes: `due_at` applies if earlier, `totals` are increments."""

    tenant_id: UUID
    webhook_id: UUID
    health: Health
    learned: Concurrency
    due_at: datetime | None = None
    totals: Counter[str] = field(default_factory=Counter)

    def wake_up(self, at: datetime) -> None:
        """Make the lane due at `at`, unless it is due earlier."""
        self.due_at = min(self.due_at or at, at)


# The columns of a lane that are replaced, and those that are incremented.
_REPLACED = {
    name: Lane.__table__.c[name].type.compile(postgresql.dialect())  # type: ignore[no-untyped-call]
    for name in (*_HEALTH, *_LEARNED)
    if name != "last_failures"
}
_TOTALS = tuple(
    f"{kind}s_{status}"
    for kind in ("event", "replay", "test")
    for status in ("succeeded", "failed", "open")
)
_CHANGED = (
    {"tenant_id": "uuid", "webhook_id": "uuid", "due_at": "timestamptz", "last_failures": "text"}
    | _REPLACED
    | dict.fromkeys(_TOTALS, "bigint")
)
_UPDATE = f"""
UPDATE lanes AS l
   SET {", ".join(f"{name} = c.{name}" for name in _REPLACED)},
       {", ".join(f"{name} = l.{name} + c.{name}" for name in _TOTALS)},
       -- An array of arrays is one array to unnest: so each comes as its text.
       last_failures = c.last_failures::timestamptz[],
       due_at = least(l.due_at,
                      CASE WHEN c.due_at IS NOT NULL THEN greatest(c.due_at, c.paused_until) END)
  FROM unnest({", ".join(f"%({name})b::{kind}[]" for name, kind in _CHANGED.items())})
    AS c ({", ".join(_CHANGED)})
 -- By its place, for the lane is locked: no plan can then read its earlier versions.
 CROSS JOIN LATERAL (
    SELECT n.ctid AS place FROM lanes AS n
     WHERE n.tenant_id = c.tenant_id AND n.webhook_id = c.webhook_id
     ORDER BY n.version DESC LIMIT 1) AS newest
 WHERE l.ctid = newest.place
"""


def update(session: Session, changes: Sequence[LaneChange]) -> None:
    """Write the changes of locked lanes."""
    if not changes:
        return
    rows = [
        dict.fromkeys(_TOTALS, 0)
        | vars(change.health)
        | vars(change.learned)
        | {name: getattr(change, name) for name in ("tenant_id", "webhook_id", "due_at")}
        | change.totals
        | {"last_failures": f"{{{','.join(map(str, change.health.last_failures))}}}"}
        for change in changes
    ]
    cursor(session).execute(_UPDATE, {name: [row[name] for row in rows] for name in _CHANGED})
