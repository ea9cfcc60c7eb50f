"""The books of a webhook: every accepted event is succeeded, failed, cancelled or pending.

`accepted` is the sequence counters of its lanes plus the unnumbered rows; the totals outlive pruned
history; `pending` is counted by a scan of the open rows, or of a long backlog the lane's counters.
No side is computed from another, so `balanced` is a real check.
"""

from typing import Any
from uuid import UUID

import structlog
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from app.core.delivery.lanes import lanes
from app.database import cursor

_log = structlog.get_logger(__name__)

# A scan of this many open rows takes about 20 ms.
SCANNED_AT_MOST = 100_000

_KINDS = ("events", "tests", "replays")
_LINE = ("accepted", "succeeded", "failed", "cancelled", "pending")

_FIGURES = (
    *(f"{kind}_{name}" for kind in _KINDS for name in ("accepted", "succeeded", "failed")),
    *(f"{kind}_{name}" for kind in _KINDS for name in ("cancelled", "found")),
    *("replays_open", "tests_open", "failed_arrived", "cancelled_arrived"),
)
# One statement, so that all figures are of one moment. PostgreSQL skips the scan unless it is
# wanted: its first condition does not depend on the rows.
_BOOKS = f"""
WITH lane AS MATERIALIZED (
    SELECT *, %(exact)s OR events_open + replays_open + tests_open + unnumbered <= %(few)s
              AS counted
      FROM (SELECT *, count_unnumbered(tenant_id, webhook_id) AS unnumbered FROM lanes
             WHERE tenant_id = %(tenant)s AND webhook_id = ANY (%(lanes)s) OFFSET 0) AS asked_once
), each AS (
    SELECT lane.*, next_sequence - 1 + unnumbered AS events_accepted, found.*
      FROM lane
     CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE kind = 'event') AS events_found,
               count(*) FILTER (WHERE kind = 'replay') AS replays_found,
               count(*) FILTER (WHERE kind = 'test') AS tests_found
          FROM open_deliveries
         WHERE lane.counted AND tenant_id = (SELECT %(tenant)s::uuid)
           AND webhook_id = lane.webhook_id) AS found
)
SELECT bool_and(counted) AS counted, sum(events_open + unnumbered)::bigint AS events_open,
       {", ".join(f"sum({name})::bigint AS {name}" for name in _FIGURES)}
  FROM each HAVING count(*) > 0
"""


def of(
    session: Session, tenant_id: UUID, webhook_id: UUID, *, exact: bool = False
) -> dict[str, Any]:
    """Return the books of one webhook, deleted or not, with separate lines for tests and replays.

    `counted` in the result says that a scan counted `pending`; `exact` forces the scan for any
    number of open rows. A scan that differs from the lane's counters also unbalances the books.
    """
    wanted = {
        "tenant": tenant_id,
        "lanes": lanes.of_webhook(session, tenant_id, webhook_id),
        "exact": exact,
        "few": SCANNED_AT_MOST,
    }
    figures = cursor(session, dict_row).execute(_BOOKS, wanted).fetchone()
    if figures is None:
        raise LookupError(f"webhook {webhook_id} has no lane")
    pending = "found" if figures["counted"] else "open"
    for kind in _KINDS:
        figures[f"{kind}_pending"] = figures[f"{kind}_{pending}"]
    lines = {kind: {name: figures[f"{kind}_{name}"] for name in _LINE} for kind in _KINDS}
    # A scan, if there was one, must agree with the lane's counters.
    alike = not figures["counted"] or all(
        figures[f"{kind}_found"] == figures[f"{kind}_open"] for kind in _KINDS
    )
    balanced = alike and all(_balanced(line) for line in lines.values())
    if not balanced:
        where = {"tenant_id": tenant_id.hex, "webhook_id": webhook_id.hex}
        _log.error("accounting_unbalanced", **where, **figures)
    return {
        **lines["events"],
        "arrived_by_replay": figures["failed_arrived"],
        "cancelled_arrived_by_replay": figures["cancelled_arrived"],
        "balanced": balanced,
        "counted": figures["counted"],
        "tests": lines["tests"],
        "replays": lines["replays"],
    }


# Deleted webhooks have no unnumbered rows.
_ALL = """
SELECT coalesce(sum(next_sequence - 1 + unnumbered), 0)::bigint AS accepted,
       coalesce(sum(events_succeeded), 0)::bigint AS succeeded,
       coalesce(sum(events_failed), 0)::bigint AS failed,
       coalesce(sum(events_cancelled), 0)::bigint AS cancelled,
       coalesce(sum(events_open + unnumbered), 0)::bigint AS pending,
       coalesce(sum(failed_arrived), 0)::bigint AS arrived_by_replay,
       coalesce(sum(cancelled_arrived), 0)::bigint AS cancelled_arrived_by_replay
  FROM lanes AS l
 CROSS JOIN LATERAL (
    SELECT coalesce(sum(count_unnumbered(w.tenant_id, l.webhook_id)), 0) AS unnumbered
      FROM webhooks AS w
     WHERE w.tenant_id = l.tenant_id AND w.id = webhook_of(l.webhook_id)
       AND w.deleted_at IS NULL) AS live
 WHERE l.tenant_id = %s
"""


def of_all(session: Session, tenant_id: UUID) -> dict[str, Any]:
    """Return the line of events summed over a tenant's webhooks, including deleted ones.

    Reads the lanes' counters, and of deliveries only the unnumbered ones.
    """
    found = cursor(session, dict_row).execute(_ALL, (tenant_id,)).fetchone()
    assert found is not None  # noqa: S101  # totals are one row
    return {**found, "balanced": _balanced(found)}


def _balanced(line: dict[str, int]) -> bool:
    return line["accepted"] == sum(line[name] for name in _LINE if name != "accepted")
