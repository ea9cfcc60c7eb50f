"""Alerts: each break of a chain is stored, reported once, and closed when the chain verifies again.

A row that is deleted only repeats the alert. What the daily run found is in sealed notes, which the
database's owner cannot write; each names when its run began, for an older one can be put back. An
operator acknowledges chains that the log knows and no tenant has.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
import structlog
from psycopg.rows import scalar_row
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.database import Database, Tx, cursor
from app.errors import (
    AuditChainBroken,
    LogDamaged,
    LogHalted,
    NotFound,
    OlderStampDamaged,
    Unavailable,
)
from app.lib import canonical_json
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.models import NO_TENANT

_log = structlog.get_logger(__name__)

LOG = "log"
UNKNOWN_CHAIN = "unknown_chain"

# `detected_at` is `seen_at` where the break is new, or is back after it was healed.
_UPSERT = """
INSERT INTO audit_breaks AS b (tenant_id, subject, seq, reason, expected, found,
                               detected_at, seen_at)
SELECT %s, %s, %s, %s, %s, %s, now.at, now.at FROM (SELECT clock_timestamp() AS at) AS now
    ON CONFLICT (tenant_id, subject, seq, reason) DO UPDATE
   SET seen_at = excluded.seen_at, healed_at = NULL,
       expected = excluded.expected, found = excluded.found,
       detected_at = CASE WHEN b.healed_at IS NULL THEN b.detected_at ELSE excluded.detected_at END
RETURNING detected_at, detected_at = seen_at
"""
# The log's own: 0 is closed by a verification of all leaves, 1 by one of all stamps (`full`).
_HEAL = """
UPDATE audit_breaks SET healed_at = clock_timestamp()
 WHERE tenant_id = %s AND healed_at IS NULL AND seen_at < %s
   AND CASE WHEN subject <> 'log' THEN %s WHEN seq = 0 THEN %s ELSE %s END
"""
_OPEN_BREAKS = """
SELECT count(DISTINCT tenant_id) FILTER (WHERE subject = ''),
       count(DISTINCT subject) FILTER (WHERE subject NOT IN ('', 'log')),
       max(found) FILTER (WHERE subject = 'log')
  FROM audit_breaks WHERE healed_at IS NULL
"""
_DAMAGED = f"""
SELECT EXISTS (SELECT FROM audit_breaks
                WHERE tenant_id = '{NO_TENANT}' AND subject = 'log' AND healed_at IS NULL
                  AND reason = '{LogDamaged.slug}')
"""
_OPEN = "SELECT count(*) FROM audit_breaks WHERE healed_at IS NULL"


def report_break(database: Database, tenant_id: UUID, error: AuditChainBroken) -> None:
    """Report that a tenant's chain is broken, as `report_break_in`, in a transaction of its own.

    The caller raises or stores the error itself. Nothing is raised here, not even without the
    database: an answer that says "broken" must not depend on it.
    """
    _log.critical("audit_chain_broken", tenant_id=ids.text("ten", tenant_id), **error.report)
    try:
        with database.transaction(tenant_id) as session:
            _emit_once(session, tenant_id, error)
    except (SQLAlchemyError, psycopg.Error, Unavailable) as fault:
        _log.error("audit_break_not_stored", error=type(fault).__name__)


def report_break_in(session: Session, tenant_id: UUID, error: AuditChainBroken) -> None:
    """Log a break of a tenant's chain, store it, and emit `audit.chain_broken` once for it."""
    _log.critical("audit_chain_broken", tenant_id=ids.text("ten", tenant_id), **error.report)
    _emit_once(session, tenant_id, error)


def _emit_once(session: Session, tenant_id: UUID, error: AuditChainBroken) -> None:
    moment = _store(session, tenant_id, "", **error.report)
    if moment is not None:
        data = {**error.report, "detected_at": rfc3339(moment)}
        events.emit(session, tenant_id, [NewEvent("audit.chain_broken", data, moment)])


def report_log(database: Database, error: LogHalted) -> None:
    """Log that the log does not verify, and store it as a break of the service's own."""
    _log.critical("log_not_verified", problem=error.slug, detail=error.detail)
    seq = int(isinstance(error, OlderStampDamaged))
    try:
        with database.transaction(NO_TENANT) as session:
            _store(session, NO_TENANT, LOG, seq, error.slug, "", error.detail)
    except (SQLAlchemyError, psycopg.Error, Unavailable) as fault:
        _log.error("audit_break_not_stored", error=type(fault).__name__)


def report_unknown(session: Session, chain: bytes, seq: int, index: int) -> None:
    """Report a chain in the log that no tenant has: the tenant is gone, or its salt."""
    name, expected = chain.hex(), f"a tenant with this chain (leaf {index})"
    _log.critical("audit_chain_without_tenant", chain=name, seq=seq, leaf=index)
    _store(session, NO_TENANT, name, seq, UNKNOWN_CHAIN, expected, "none")


def heal(
    session: Session,
    tenant_id: UUID,
    before: datetime,
    *,
    chains: bool = True,
    leaves: bool = True,
    stamps: bool = False,
) -> None:
    """Close the breaks not seen since a verification began, at `before`, that found none.

    Of `NO_TENANT`, whose breaks are the service's own, those of what it read: of `chains` without a
    tenant, of the log's `leaves`, of older `stamps`.
    """
    cursor(session).execute(_HEAL, (tenant_id, before, chains, leaves, stamps))


def count_open(tx: Tx) -> int:
    """Return how many breaks are open, of those that the session may see."""
    return int(cursor(tx, scalar_row).execute(_OPEN).fetchone() or 0)


def log_is_damaged(session: Session) -> bool:
    """Say whether the log is damaged: met by a verification or a reader, and not healed since."""
    return bool(cursor(session, scalar_row).execute(_DAMAGED.encode()).fetchone())


def open_breaks(session: Session) -> dict[str, str]:
    """Return what is broken, for operators, in a session that sees all tenants.

    By what is: `chains`, `unknown` (in the log, without a tenant), and `LOG` with what was found.
    """
    ((chains, unknown, log),) = cursor(session).execute(_OPEN_BREAKS).fetchall()
    found = {
        "chains": chains and f"{chains} broken",
        "unknown": unknown and f"{unknown} in the log without a tenant",
        LOG: log,
    }
    return {what: text for what, text in found.items() if text}


def _store(
    session: Session,
    tenant_id: UUID,
    subject: str,
    seq: object,
    reason: object,
    expected: object,
    found: object,
) -> datetime | None:
    """Return when the break was detected if it is new, or was healed and is back; else None."""
    values = (tenant_id, subject, seq, reason, readable(expected), readable(found))
    ((detected_at, is_new),) = cursor(session).execute(_UPSERT, values).fetchall()
    return detected_at if is_new else None


def readable(value: object) -> str:
    """Return what was expected or found as the database can hold it."""
    # PostgreSQL's text has no NUL, and a forger's may.
    return str(value).replace("\x00", "\N{REPLACEMENT CHARACTER}")


_WRITE = """
INSERT INTO sealed_notes (name, sealed) VALUES (%s, %s)
ON CONFLICT (name) DO UPDATE SET sealed = excluded.sealed
"""
_READ = "SELECT name, sealed FROM sealed_notes WHERE starts_with(name, %s)"
_FOUND = "unknown_chains"
# A note of each chain: two that are acknowledged at once are both kept, and so is one that does not
# open for now.
_ACKNOWLEDGED = "acknowledged_chain/"
_CLOSE = f"""
UPDATE audit_breaks SET healed_at = clock_timestamp()
 WHERE healed_at IS NULL AND tenant_id = '{NO_TENANT}' AND reason = '{UNKNOWN_CHAIN}'
   AND subject = %s
"""


def write_note(session: Session, master_keys: MasterKeys, name: str, note: Any) -> None:
    """Keep a note, which is JSON, in the place of the one before."""
    sealed = master_keys.seal(canonical_json.dumps(note), note_identity(name))
    cursor(session).execute(_WRITE, (name, sealed))


def read_note(session: Session, master_keys: MasterKeys, name: str) -> Any:
    """Return a note; None where there is none that this service sealed."""
    return _notes(session, master_keys, name).get(name)


def _notes(session: Session, master_keys: MasterKeys, begin: str) -> dict[str, Any]:
    """Return the notes that this service sealed whose names begin so."""
    found = {}
    for name, sealed in cursor(session).execute(_READ, (begin,), binary=True).fetchall():
        with suppress(CannotOpen):
            found[name] = json.loads(master_keys.open(sealed, note_identity(name)))
    return found


def note_identity(name: str) -> str:
    """Return what a note of this name is sealed for."""
    return f"sealed_notes/{name}"


def keep_found(
    session: Session, master_keys: MasterKeys, chains: Iterable[bytes], began: datetime
) -> None:
    """Seal which chains without a tenant the daily run found that began at this moment."""
    found = {"chains": [chain.hex() for chain in chains], "began": rfc3339(began)}
    write_note(session, master_keys, _FOUND, found)


def unknown_chains(session: Session, master_keys: MasterKeys) -> dict[str, Any]:
    """Return for the API how many chains without a tenant are open, and as of which daily run.

    Null before a run has sealed what it found. Takes a session that sees the service's own rows.
    """
    found = read_note(session, master_keys, _FOUND)
    if found is None:
        return {"unknown_chains": None, "unknown_chains_at": None}
    chains = {bytes.fromhex(chain) for chain in found["chains"]}
    count = len(chains - acknowledged(session, master_keys))
    return {"unknown_chains": count, "unknown_chains_at": found["began"]}


def acknowledged(session: Session, master_keys: MasterKeys) -> frozenset[bytes]:
    """Return the names of chains that an operator acknowledged."""
    return frozenset(map(bytes.fromhex, _notes(session, master_keys, _ACKNOWLEDGED).values()))


def acknowledge(session: Session, master_keys: MasterKeys, chain: bytes) -> None:
    """Close an unknown chain for good. Raises `NotFound` if none of this name is open."""
    if not cursor(session).execute(_CLOSE.encode(), (chain.hex(),)).rowcount:
        raise NotFound("No chain of this name is open: the line audit_chain_without_tenant has it.")
    write_note(session, master_keys, f"{_ACKNOWLEDGED}{chain.hex()}", chain.hex())
    _log.warning("unknown_chain_acknowledged", chain=chain.hex())
