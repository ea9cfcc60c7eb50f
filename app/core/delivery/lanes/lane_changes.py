"""The changes of lanes by outcomes, written together."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.delivery.lanes.lane_health import Concurrency, Health
from app.core.delivery.lanes.lanes import LEARNED
from app.database import cursor


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
    name: "timestamptz" if name.endswith(("_at", "_since", "_until")) else "bigint"
    for name in LEARNED
    if name != "last_failures"
} | {"latency_ms": "real"}
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
       recovered_through = CASE WHEN l.recovering_since IS NOT DISTINCT FROM c.recovering_since
                                THEN l.recovered_through END,
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
