"""Findings: what somebody must know about what an agent did.

This is the hot path of the service: a few statements for any number of findings (find the sessions,
store the findings, emit the events) through a raw cursor, and no ORM object. A finding may be added
to a session that is completed: analysis often ends after the agent did.
"""

import enum
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import documents, feeds
from app.core.callers import Caller
from app.core.delivery import events
from app.database import Tx, cursor
from app.errors import NotFound
from app.models import Finding


class Severity(enum.StrEnum):
    """How much a finding matters, least first."""

    INFO = "info"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class NewFinding(NamedTuple):
    """A finding as its author sends it; `data` is any JSON, None for none."""

    session_id: UUID
    rule: str
    severity: str
    title: str
    detail: str | None = None
    data: object = None


class _Row(NamedTuple):
    """The columns of a finding about to be stored, in the order of `_INSERT`."""

    id: UUID
    session_id: UUID
    agent_id: UUID
    principal: str
    rule: str
    severity: str
    title: str
    detail: str | None
    data_json: str | None
    created_at: datetime

    @property
    def record_id(self) -> UUID | None:
        return None


_SESSIONS = """
SELECT id, agent_id, principal, clock_timestamp()
  FROM sessions WHERE tenant_id = %s AND id = ANY (%b)
"""

# `%b`: psycopg writes an array as binary in a tenth of the time that its text form takes, or less.
_INSERT = """
INSERT INTO findings (tenant_id, id, session_id, agent_id, principal, rule, severity, title, detail,
                      data_json, created_at)
SELECT %s, * FROM unnest(%b::uuid[], %b::uuid[], %b::uuid[], %b::text[], %b::text[], %b::text[],
                         %b::text[], %b::text[], %b::text[], %b::timestamptz[])
"""


def add(tx: Tx, caller: Caller, new: Sequence[NewFinding]) -> list[dict[str, Any]]:
    """Store findings, emit `finding.created` for each, and return them as their GET answers them.

    All or nothing, in the order given. Raises `NotFound` when the session of one does not exist or
    is outside the caller's pin.
    """
    rows = _rows(tx, caller, new)
    cursor(tx).execute(_INSERT, (caller.tenant_id, *map(list, zip(*rows, strict=True))))
    represented = [represent(row) for row in rows]
    events.emit(
        tx,
        caller.tenant_id,
        [
            events.NewEvent("finding.created", data, row.created_at)
            for data, row in zip(represented, rows, strict=True)
        ],
    )
    return represented


def rows(
    session: Session, caller: Caller, filters: Mapping[str, object], before: UUID | None, limit: int
) -> Sequence[Finding]:
    """Return one page of the findings that the caller may see (see `feeds.newest`)."""
    return session.scalars(feeds.newest(Finding, caller, filters, before, limit)).all()


def find(session: Session, caller: Caller, finding_id: UUID | None) -> Finding:
    """Return one finding; raises `NotFound` when there is none that the caller may see."""
    found = session.scalars(
        select(Finding).where(*feeds.visible(Finding, caller), Finding.id == finding_id)
    ).one_or_none()
    if found is None:
        raise NotFound("There is no finding with this id.")
    return found


def represent(row: Finding | _Row) -> dict[str, Any]:
    """Return a finding as its GET answers it, and as `finding.created` carries it."""
    return {
        "id": ids.text("fnd", row.id),
        "session_id": ids.text("ses", row.session_id),
        "record_id": None if row.record_id is None else ids.text("rec", row.record_id),
        "agent_id": ids.text("agt", row.agent_id),
        "principal": row.principal,
        "rule": row.rule,
        "severity": row.severity,
        "title": row.title,
        "detail": row.detail,
        "data": documents.from_text(row.data_json),
        "created_at": rfc3339(row.created_at),
    }


def _rows(tx: Tx, caller: Caller, new: Sequence[NewFinding]) -> list[_Row]:
    wanted = list({finding.session_id for finding in new})
    found = cursor(tx).execute(_SESSIONS, (caller.tenant_id, wanted)).fetchall()
    about = {
        session_id: (agent_id, principal)
        for session_id, agent_id, principal, _ in found
        if caller.may_touch(agent_id, principal)
    }
    _refuse_unknown(new, about)
    now = found[0][3]
    # One moment for all, and ids in the order given: the feed keeps the order of a batch.
    identifiers = sorted(ids.new(now) for _ in new)
    return [
        _Row(
            identifier,
            finding.session_id,
            *about[finding.session_id],
            finding.rule,
            finding.severity,
            finding.title,
            finding.detail,
            documents.to_text(finding.data),
            now,
        )
        for identifier, finding in zip(identifiers, new, strict=True)
    ]


def _refuse_unknown(new: Sequence[NewFinding], known: Mapping[UUID, object]) -> None:
    for index, finding in enumerate(new):
        if finding.session_id not in known:
            where = f" (/findings/{index}/session_id)" if len(new) > 1 else ""
            raise NotFound(f"There is no session with this id{where}.")
