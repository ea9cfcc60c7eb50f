"""Alerts: each break of a chain is stored, reported once, and closed when the chain verifies again.

A row that is deleted only repeats the alert.
"""

from datetime import datetime
from uuid import UUID

import psycopg
import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.core.verification import sealed_notes
from app.database import Database, Tx, cursor
from app.errors import AuditChainBroken, LogDamaged, LogHalted, OlderStampDamaged, Unavailable
from app.models import NO_TENANT

_log = structlog.get_logger(__name__)

LOG = "log"

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
_HEAL = """
UPDATE audit_breaks SET healed_at = clock_timestamp()
 WHERE tenant_id = %s AND healed_at IS NULL AND seen_at < %s AND (subject <> 'log' OR seq = 0)
"""
_HEAL_LOG = f"""
UPDATE audit_breaks SET healed_at = clock_timestamp()
 WHERE tenant_id = '{NO_TENANT}' AND subject = 'log' AND healed_at IS NULL AND seen_at < %s
   AND CASE seq WHEN 0 THEN %s ELSE %s END
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
    moment = _store(session, tenant_id, "", error.report)
    if moment is not None:
        data = {**error.report, "detected_at": rfc3339(moment)}
        events.emit(session, tenant_id, [NewEvent("audit.chain_broken", data, moment)])


def report_log(database: Database, error: LogHalted) -> None:
    """Log that the log does not verify, and store it as a break of the service's own."""
    _log.critical("log_not_verified", problem=error.slug, detail=error.detail)
    # By what closes it again: 0 a verification of the whole log, 1 one of all stamps (`full`).
    seq = int(isinstance(error, OlderStampDamaged))
    report = {"seq": seq, "reason": error.slug, "expected": "", "found": error.detail}
    try:
        with database.transaction(NO_TENANT) as session:
            _store(session, NO_TENANT, LOG, report)
    except (SQLAlchemyError, psycopg.Error, Unavailable) as fault:
        _log.error("audit_break_not_stored", error=type(fault).__name__)


def report_unknown(session: Session, chain: bytes, seq: int, index: int) -> None:
    """Report a chain in the log that no tenant has: the tenant is gone, or its salt."""
    expected, name = f"a tenant with this chain (leaf {index})", chain.hex()
    _log.critical("audit_chain_without_tenant", chain=name, seq=seq, leaf=index)
    report = {
        "seq": seq,
        "reason": sealed_notes.UNKNOWN_CHAIN,
        "expected": expected,
        "found": "none",
    }
    _store(session, NO_TENANT, name, report)


def heal(session: Session, tenant_id: UUID, before: datetime) -> None:
    """Close the breaks not seen since a verification began, at `before`, that found none.

    Of `NO_TENANT`, whose breaks are the service's own, those of older stamps stay open.
    """
    cursor(session).execute(_HEAL, (tenant_id, before))


def heal_log(session: Session, before: datetime, *, leaves: bool, stamps: bool) -> None:
    """Close the log's own breaks if all `leaves` were read, and those of `stamps` likewise."""
    cursor(session).execute(_HEAL_LOG.encode(), (before, leaves, stamps))


def count_open(tx: Tx) -> int:
    """Return how many breaks are open, of those that the session may see."""
    row = cursor(tx).execute(_OPEN).fetchone()
    return 0 if row is None else int(row[0])


def log_is_damaged(session: Session) -> bool:
    """Say whether the log is damaged: met by a verification or a reader, and not healed since."""
    row = cursor(session).execute(_DAMAGED.encode()).fetchone()
    return row is not None and bool(row[0])


def open_breaks(session: Session) -> dict[str, str]:
    """Return what is broken, for operators, in a session that sees all tenants.

    By what is: `chains`, `unknown` (in the log, without a tenant), and `LOG` with what was found.
    """
    row = cursor(session).execute(_OPEN_BREAKS).fetchone()
    chains, unknown, log = row or (0, 0, None)
    found = {
        "chains": chains and f"{chains} broken",
        "unknown": unknown and f"{unknown} in the log without a tenant",
        LOG: log,
    }
    return {what: text for what, text in found.items() if text}


def _store(
    session: Session, tenant_id: UUID, subject: str, report: dict[str, object]
) -> datetime | None:
    """Return when the break was detected if it is new, or was healed and is back; else None."""
    place = (tenant_id, subject, report["seq"], report["reason"])
    values = (*place, readable(report["expected"]), readable(report["found"]))
    row = cursor(session).execute(_UPSERT, values).fetchone()
    return row[0] if row is not None and row[1] else None


def readable(value: object) -> str:
    """Return what was expected or found as the database can hold it."""
    # PostgreSQL's text has no NUL, and a forger's may.
    return str(value).replace("\x00", "\N{REPLACEMENT CHARACTER}")
