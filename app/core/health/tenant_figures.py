"""Figures of every tenant for the operator: how many and how much, and nothing of content.

A tick computes them in one pass, so that a page of tenants reads an index, however many there are.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import class_row

from app.core.digests import troubles
from app.database import Tx, cursor


class Sort(enum.StrEnum):
    """The orders of the list: the most of these first."""

    WAITING = "waiting"
    FAILED = "failed"
    FAILING = "failing"
    SLOW = "slow"
    BYTES = "bytes"


@dataclass(frozen=True)
class Figures:
    """A tenant's figures. `at` is when they changed last.

    `waiting` deliveries are open, `failed` ones ended so in the last day; `failing` webhooks are in
    trouble, `slow` lanes answer late; `bytes` of bundles are stored.
    """

    tenant_id: UUID
    name: str
    suspended_at: datetime | None
    waiting: int
    failed: int
    failing: int
    slow: int
    bytes: int
    at: datetime


_COMPUTE = f"""
WITH lane AS (
    SELECT l.tenant_id, sum(l.events_open + l.replays_open + l.tests_open)::bigint AS waiting,
           count(DISTINCT w.id) FILTER (WHERE {troubles.TROUBLED}) AS failing,
           count(*) FILTER (WHERE w.status = 'enabled' AND l.slow_at IS NOT NULL) AS slow
      FROM lanes AS l
      JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = webhook_of(l.webhook_id)
     WHERE w.deleted_at IS NULL GROUP BY l.tenant_id
), hour AS (
    SELECT tenant_id, sum(failed) AS failed FROM delivery_hours
     WHERE at > clock_timestamp() - interval '1 day' AND failed > 0 GROUP BY tenant_id
), stored AS (
    SELECT tenant_id, sum(bytes)::bigint AS bytes FROM stored_records GROUP BY tenant_id
)
INSERT INTO tenant_figures AS f (tenant_id, waiting, failed, failing, slow, bytes)
SELECT t.id, coalesce(waiting, 0), coalesce(failed, 0), coalesce(failing, 0), coalesce(slow, 0),
       coalesce(bytes, 0)
  FROM tenants AS t
  LEFT JOIN lane ON lane.tenant_id = t.id
  LEFT JOIN hour ON hour.tenant_id = t.id
  LEFT JOIN stored ON stored.tenant_id = t.id
ON CONFLICT (tenant_id) DO UPDATE
   SET waiting = excluded.waiting, failed = excluded.failed, failing = excluded.failing,
       slow = excluded.slow, bytes = excluded.bytes, at = excluded.at
 WHERE (f.waiting, f.failed, f.failing, f.slow, f.bytes)
       IS DISTINCT FROM (excluded.waiting, excluded.failed, excluded.failing, excluded.slow,
                         excluded.bytes)
"""
_STAMP = "UPDATE sweeps SET figured_at = clock_timestamp()"
_COMPUTED = "SELECT figured_at FROM sweeps"
_PAGE = """
SELECT f.tenant_id, t.name, t.suspended_at, f.waiting, f.failed, f.failing, f.slow, f.bytes, f.at
  FROM tenant_figures AS f JOIN tenants AS t ON t.id = f.tenant_id
"""


def compute(tx: Tx) -> None:
    """Compute the figures of all tenants, in a session that sees them."""
    cursor(tx).execute(_COMPUTE.encode())
    cursor(tx).execute(_STAMP)


def computed_at(tx: Tx) -> datetime | None:
    """Return when the figures were computed last; None before the first time."""
    found: datetime | None = cursor(tx).execute(_COMPUTED).fetchall()[0][0]
    return found


def rows(
    tx: Tx, sort: Sort, after: tuple[int, UUID] | None, limit: int, *, suspended: bool = False
) -> Sequence[Figures]:
    """Return a page of tenants, those with the most of `sort` first, behind the position `after`.

    That is the last tenant's number as it was shown: it may be another by now. With `suspended`
    only those that are.
    """
    query = _PAGE
    values: dict[str, object] = {"limit": limit}
    conditions = ["t.suspended_at IS NOT NULL"] if suspended else []
    if after is not None:
        conditions.append(f"(f.{sort}, f.tenant_id) < (%(number)s, %(tenant)s)")
        values |= {"number": after[0], "tenant": after[1]}
    if conditions:
        query += f" WHERE {' AND '.join(conditions)}"
    query += f" ORDER BY f.{sort} DESC, f.tenant_id DESC LIMIT %(limit)s"
    return cursor(tx, class_row(Figures)).execute(query.encode(), values).fetchall()


def find(tx: Tx, words: str, limit: int) -> Sequence[Figures]:
    """Return tenants whose name begins with these words, by name; or the one with this id."""
    query = f"""{_PAGE} WHERE lower(t.name) LIKE %(begin)s OR t.id::text = %(id)s
     ORDER BY lower(t.name), t.id LIMIT %(limit)s"""
    begin = words.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    values = {"begin": f"{begin}%", "id": _uuid(words), "limit": limit}
    return cursor(tx, class_row(Figures)).execute(query.encode(), values).fetchall()


def _uuid(words: str) -> str:
    try:
        return str(UUID(words.removeprefix("ten_")))
    except ValueError:
        return ""
