"""What agents and sessions did: how many records, since when, and a session's way in order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core import feeds
from app.core.callers import Caller
from app.database import Tx, cursor
from app.models import Record

MOST_COUNTED = 1_000
"""A page may name fifty agents: counting ten million records of each would take minutes."""

# Both read the index that ends in `id`, from its end.
_ACTIVITY = f"""
SELECT of.id, counted.records, newest.created_at
  FROM unnest(%(ids)b::uuid[]) AS of (id)
 CROSS JOIN LATERAL (
       SELECT count(*) AS records FROM (
              SELECT FROM records AS r
               WHERE r.tenant_id = %(tenant)s AND r.{{column}} = of.id {{pin}}
               LIMIT {MOST_COUNTED + 1}) AS few) AS counted
  LEFT JOIN LATERAL (
       SELECT r.created_at FROM records AS r
        WHERE r.tenant_id = %(tenant)s AND r.{{column}} = of.id {{pin}}
        ORDER BY r.id DESC LIMIT 1) AS newest ON true
"""


@dataclass(frozen=True)
class Activity:
    """How many records there are, counted up to one more than `MOST_COUNTED`; the newest's time."""

    records: int
    last_at: datetime | None


def of(
    tx: Tx, caller: Caller, prefix: Literal["agt", "ses"], rows: Iterable[Mapping[str, Any]]
) -> dict[str, Activity]:
    """Return the activity of agents or sessions, by the `id` of their rows.

    A pinned caller's counts only what is its own.
    """
    pin = caller.pin
    values = {
        "tenant": caller.tenant_id,
        "ids": [ids.read(prefix, row["id"]) for row in rows],
        "principal": pin and pin.principal,
    }
    statement = _ACTIVITY.format(
        column={"agt": "agent_id", "ses": "session_id"}[prefix],
        pin="" if pin is None else "AND r.principal = %(principal)s",
    )
    found = cursor(tx).execute(statement, values)
    return {ids.text(prefix, each): Activity(*counted) for each, *counted in found}


def way(
    session: Session, caller: Caller, session_id: UUID, after: UUID | None, limit: int
) -> Sequence[Record]:
    """Return one page of a session's records, oldest first, after the id `after`."""
    wanted = (
        select(Record)
        .where(*feeds.visible(Record, caller), Record.session_id == session_id)
        .order_by(Record.id)
        .limit(limit)
    )
    if after is not None:
        wanted = wanted.where(Record.id > after)
    return session.scalars(wanted).all()
