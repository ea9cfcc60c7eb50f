"""What agents and sessions did: how much, since when, by day, and a session's way in order."""

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

MOST_COUNTED = 500
"""A page may name fifty agents: counting ten million records of each would take minutes."""

# All read indexes that end in `id`, from their ends.
_COUNTED = f"""
 CROSS JOIN LATERAL (
       SELECT count(*) AS {{table}} FROM (
              SELECT FROM {{table}} AS r
               WHERE r.tenant_id = %(tenant)s AND r.{{column}} = {{of}} {{pin}}
               LIMIT {MOST_COUNTED + 1}) AS few) AS counted_{{table}}
"""
_ACTIVITY = """
SELECT of.id, records, findings, newest.created_at
  FROM unnest(%(ids)b::uuid[]) AS of (id)
  {records} {findings}
  LEFT JOIN LATERAL (
       SELECT r.created_at FROM records AS r
        WHERE r.tenant_id = %(tenant)s AND r.{column} = of.id {pin}
        ORDER BY r.id DESC LIMIT 1) AS newest ON true
"""
_BY_DAY = """
SELECT day.at, records, findings
  FROM unnest(%(starts)b::timestamptz[], %(low)b::uuid[], %(high)b::uuid[]) AS day (at, low, high)
  {records} {findings}
 ORDER BY day.at
"""
_OCCURRED = "SELECT id, occurred_at FROM records WHERE tenant_id = %s AND id = ANY (%s)"


@dataclass(frozen=True)
class Activity:
    """How many records and findings there are, each counted up to one more than `MOST_COUNTED`.

    `last_at` is when the newest record was created.
    """

    records: int
    findings: int
    last_at: datetime | None


def of(
    tx: Tx, caller: Caller, prefix: Literal["agt", "ses"], rows: Iterable[Mapping[str, Any]]
) -> dict[str, Activity]:
    """Return the activity of agents or sessions, by the `id` of their rows.

    A pinned caller's counts only what is its own.
    """
    column = {"agt": "agent_id", "ses": "session_id"}[prefix]
    values = _of(caller) | {"ids": [ids.read(prefix, row["id"]) for row in rows]}
    pin = "" if caller.pin is None else "AND r.principal = %(principal)s"
    parts = {
        table: _COUNTED.format(table=table, column=column, of="of.id", pin=pin)
        for table in ("records", "findings")
    }
    found = cursor(tx).execute(_ACTIVITY.format(column=column, pin=pin, **parts), values)
    return {ids.text(prefix, each): Activity(*counted) for each, *counted in found}


def by_day(
    tx: Tx, caller: Caller, agent_id: UUID, starts: Sequence[datetime], until: datetime
) -> list[dict[str, Any]]:
    """Return an agent's `records` and `findings` of each day (`at`), counted as `Activity`'s.

    `starts` are when the days begin; the last ends with `until`.
    """
    values = _of(caller) | {
        "agent": agent_id,
        "starts": list(starts),
        "low": [ids.earliest_at(start) for start in starts],
        "high": [ids.earliest_at(end) for end in (*starts[1:], until)],
    }
    pin = "" if caller.pin is None else "AND r.principal = %(principal)s"
    within = f"AND r.id >= day.low AND r.id < day.high {pin}"
    parts = {
        table: _COUNTED.format(table=table, column="agent_id", of="%(agent)s", pin=within)
        for table in ("records", "findings")
    }
    found = cursor(tx).execute(_BY_DAY.format(**parts), values)
    return [{"at": at, "records": records, "findings": few} for at, records, few in found]


def occurred(tx: Tx, caller: Caller, rows: Iterable[Mapping[str, Any]]) -> dict[str, datetime]:
    """Return when the records occurred whose ids stand in rows (`record_id`), by their ids."""
    wanted = {ids.read("rec", row["record_id"]) for row in rows if row["record_id"]}
    found = cursor(tx).execute(_OCCURRED, (caller.tenant_id, list(wanted)))
    return {ids.text("rec", each): at for each, at in found}


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


def _of(caller: Caller) -> dict[str, Any]:
    return {"tenant": caller.tenant_id, "principal": caller.pin and caller.pin.principal}
