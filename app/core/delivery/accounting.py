"""The books of a webhook: every accepted event is succeeded, failed, cancelled or pending.

`accepted` is the sequence counters of its lanes plus the unnumbered rows; the totals outlive pruned
history; `pending` is counted by a scan of the open rows, or of a long backlog the lane's counters.
No side is computed from another, so `balanced` is a real check.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import structlog
from psycopg.rows import dict_row, scalar_row
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
SELECT bool_and(counted) AS counted,
       coalesce(sum(events_open + unnumbered), 0)::bigint AS events_open,
       {", ".join(f"coalesce(sum({name}), 0)::bigint AS {name}" for name in _FIGURES)}
  FROM each
"""
_EVERY = "SELECT webhook_id FROM present_lanes WHERE tenant_id = %s"
Line = dict[str, int]


def of(
    session: Session, tenant_id: UUID, webhook_id: UUID, *, exact: bool = False
) -> dict[str, Any]:
    """Return the books of one webhook, deleted or not, with separate lines for tests and replays.

    `counted` in the result says that a scan counted `pending`; `exact` forces the scan for any
    number of open rows. A scan that differs from the lane's counters also unbalances the books.
    """
    keys = lanes.of_webhook(session, tenant_id, webhook_id)
    figures, lines, arrived = _books(session, tenant_id, keys, SCANNED_AT_MOST, exact=exact)
    # A scan, if there was one, must agree with the lane's counters.
    alike = not figures["counted"] or all(
        figures[f"{kind}_found"] == figures[f"{kind}_open"] for kind in _KINDS
    )
    balanced = alike and all(map(_balanced, lines.values()))
    if not balanced:
        where = {"tenant_id": tenant_id.hex, "webhook_id": webhook_id.hex}
        _log.error("accounting_unbalanced", **where, **figures)
    told = {"balanced": balanced, "counted": figures["counted"], "tests": lines["tests"]}
    return {**lines["events"], **arrived, **told, "replays": lines["replays"]}


def of_all(session: Session, tenant_id: UUID) -> dict[str, Any]:
    """Return the line of events summed over a tenant's webhooks, including deleted ones.

    Reads the lanes' counters, and of deliveries only the unnumbered ones.
    """
    every = cursor(session, scalar_row).execute(_EVERY, (tenant_id,)).fetchall()
    _, lines, arrived = _books(session, tenant_id, every, -1, exact=False)
    return {**lines["events"], **arrived, "balanced": _balanced(lines["events"])}


def _books(
    session: Session, tenant_id: UUID, keys: Sequence[UUID], few: int, *, exact: bool
) -> tuple[dict[str, Any], dict[str, Line], Line]:
    """Return the sums over lanes, the line of each kind, and what a replay delivered."""
    wanted = {"tenant": tenant_id, "lanes": keys, "exact": exact, "few": few}
    figures = cursor(session, dict_row).execute(_BOOKS, wanted).fetchone()
    assert figures is not None  # noqa: S101  # totals are one row
    pending = "found" if figures["counted"] else "open"
    for kind in _KINDS:
        figures[f"{kind}_pending"] = figures[f"{kind}_{pending}"]
    lines = {kind: {name: figures[f"{kind}_{name}"] for name in _LINE} for kind in _KINDS}
    arrived = {
        "arrived_by_replay": figures["failed_arrived"],
        "cancelled_arrived_by_replay": figures["cancelled_arrived"],
    }
    return figures, lines, arrived


def _balanced(line: Line) -> bool:
    return line["accepted"] == sum(line[name] for name in _LINE if name != "accepted")
