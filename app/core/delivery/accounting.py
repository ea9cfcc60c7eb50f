"""The books of a webhook: every event accepted is succeeded, failed, cancelled or pending.

`accepted` comes from the lane's own counter of sequence numbers and the rows that wait for one;
`pending` is counted; the rest are totals that outlive the pruned history. Neither side is computed
from the other, so `balanced` is a check and not a tautology.
"""

from typing import Any
from uuid import UUID

from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app.database import cursor

_LINE = ("accepted", "succeeded", "failed", "cancelled", "pending")

# One statement, so that all the figures are of one moment.
_BOOKS = """
SELECT l.next_sequence - 1 + (
           SELECT count(*) FROM deliveries
            WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
              AND sequence IS NULL AND kind = 'event') AS events_accepted,
       l.events_succeeded, l.events_failed, l.events_cancelled, open.events AS events_pending,
       l.replays_accepted, l.replays_succeeded, l.replays_failed, l.replays_cancelled,
       open.replays AS replays_pending,
       l.tests_accepted, l.tests_succeeded, l.tests_failed, l.tests_cancelled,
       open.tests AS tests_pending
  FROM lanes AS l
 CROSS JOIN (SELECT count(*) FILTER (WHERE kind = 'event') AS events,
                    count(*) FILTER (WHERE kind = 'replay') AS replays,
                    count(*) FILTER (WHERE kind = 'test') AS tests
               FROM deliveries
              WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
                AND finished_at IS NULL) AS open
 WHERE l.tenant_id = %(tenant)s AND l.webhook_id = %(webhook)s
"""


def of(session: Session, tenant_id: UUID, webhook_id: UUID) -> dict[str, Any]:
    """Return the books of one webhook, deleted or not: events, and tests and replays apart."""
    figures = (
        cursor(session, dict_row)
        .execute(_BOOKS, {"tenant": tenant_id, "webhook": webhook_id})
        .fetchone()
    )
    if figures is None:
        raise LookupError(f"webhook {webhook_id} has no lane")
    lines = {
        kind: {name: figures[f"{kind}_{name}"] for name in _LINE}
        for kind in ("events", "tests", "replays")
    }
    return {
        **lines["events"],
        "balanced": all(_balanced(line) for line in lines.values()),
        "tests": lines["tests"],
        "replays": lines["replays"],
    }


def _balanced(line: dict[str, int]) -> bool:
    return line["accepted"] == sum(line[name] for name in _LINE if name != "accepted")
