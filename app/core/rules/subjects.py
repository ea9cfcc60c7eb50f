"""What rules see of records and sessions, as JSON: facts beside the bytes of the bundle."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.rows import namedtuple_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.records import bundles
from app.database import cursor
from app.lib.crypto.sealing import MasterKeys

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of bundles that are read at once; at least one bundle."""

_RECORDS = """
SELECT r.id, r.kind, r.title, r.labels_json, r.occurred_at, r.created_at, r.principal, r.agent_id,
       r.session_id, r.bundle_size, a.external_id AS agent_external_id, a.name AS agent_name,
       a.version AS agent_version, s.external_id AS session_external_id
  FROM records AS r
  JOIN agents AS a ON a.tenant_id = r.tenant_id AND a.id = r.agent_id
  JOIN sessions AS s ON s.tenant_id = r.tenant_id AND s.id = r.session_id
 WHERE r.tenant_id = %s AND r.id = ANY (%b)
"""
_SESSIONS = """
SELECT s.id, s.external_id, s.title, s.metadata_json, s.principal, s.agent_id, s.status, s.outcome,
       s.summary, s.created_at, s.completed_at, a.external_id AS agent_external_id,
       a.name AS agent_name, a.version AS agent_version,
       (SELECT count(*) FROM records AS r
         WHERE r.tenant_id = s.tenant_id AND r.session_id = s.id) AS records,
       (SELECT count(*) FROM findings AS f
         WHERE f.tenant_id = s.tenant_id AND f.session_id = s.id) AS findings
  FROM sessions AS s
  JOIN agents AS a ON a.tenant_id = s.tenant_id AND a.id = s.agent_id
 WHERE s.tenant_id = %s AND s.id = ANY (%b)
"""


class Work(NamedTuple):
    """A record, or a session that ended, to be judged: when it was created or completed."""

    at: datetime
    id: UUID
    is_session: bool


class Seen(NamedTuple):
    """The facts of a record or session, and its bundle: None for a session, empty if expired."""

    facts: Mapping[str, Any]
    bundle: bytes | None


def read(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, work: Sequence[Work]
) -> tuple[dict[UUID, Seen], set[UUID]]:
    """Return what rules see of these, and which are left out: beyond `MOST_BYTES` of bundles.

    A bundle that was damaged is like one that has expired. Raises `KeyMissing`.
    """
    seen: dict[UUID, Seen] = {}
    left: set[UUID] = set()
    sessions = [each.id for each in work if each.is_session]
    if sessions:
        for row in _rows(session, _SESSIONS, tenant_id, sessions):
            seen[row.id] = Seen(_session_facts(row), None)
    records = [each.id for each in work if not each.is_session]
    if records:
        rows = {row.id: row for row in _rows(session, _RECORDS, tenant_id, records)}
        taken: list[UUID] = []
        size = 0
        for record_id in (each for each in records if each in rows):
            size += rows[record_id].bundle_size
            if size > MOST_BYTES and taken:
                left.add(record_id)
            else:
                taken.append(record_id)
        kept = bundles.read_many(session, master_keys, tenant_id, taken).contents
        for record_id in taken:
            seen[record_id] = Seen(_record_facts(rows[record_id]), kept.get(record_id, b""))
    return seen, left


def _rows(session: Session, query: str, tenant_id: UUID, wanted: list[UUID]) -> Sequence[Any]:
    found = cursor(session, namedtuple_row).execute(query.encode(), (tenant_id, wanted))
    return found.fetchall()


def _record_facts(row: Any) -> dict[str, Any]:
    session = {"id": ids.text("ses", row.session_id), "external_id": row.session_external_id}
    return {
        "id": ids.text("rec", row.id),
        **_plain(row, "kind", "title", "occurred_at", "created_at", "principal"),
        "labels": json.loads(row.labels_json),
        "agent": _agent(row),
        "session": session,
    }


def _session_facts(row: Any) -> dict[str, Any]:
    return {
        "id": ids.text("ses", row.id),
        **_plain(row, "external_id", "title", "principal", "status", "outcome", "summary"),
        **_plain(row, "created_at", "completed_at", "records", "findings"),
        "metadata": row.metadata_json and json.loads(row.metadata_json),
        "agent": _agent(row),
        "duration": row.completed_at and (row.completed_at - row.created_at).total_seconds(),
    }


def _agent(row: Any) -> dict[str, Any]:
    names = ("external_id", "name", "version")
    return {
        "id": ids.text("agt", row.agent_id),
        **{name: getattr(row, f"agent_{name}") for name in names},
    }


def _plain(row: Any, *names: str) -> dict[str, Any]:
    """Return columns as they are; moments as texts."""
    found = {name: getattr(row, name) for name in names}
    return {
        name: rfc3339(value) if isinstance(value, datetime) else value
        for name, value in found.items()
    }
