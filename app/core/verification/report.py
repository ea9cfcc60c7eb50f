"""The report of a verification that found no break: what proves the chain, and how far."""

from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.anchoring import anchors
from app.core.audit import view
from app.core.log import status
from app.core.verification.checks.full import Seen
from app.core.verification.checks.published_log import Outside, Succession
from app.core.verification.checks.stamps import NOT_VERIFIED
from app.ledger.hash_chain import Head
from app.models import AuditAnchor


def report(
    session: Session, tenant_id: UUID, name: bytes, end: Head, seen: Seen, outside: Outside
) -> dict[str, Any]:
    """Return the answer (docs/formats.md); `name` is the chain's in the log."""
    held, start = seen.held, seen.start
    answer: dict[str, Any] = {
        "status": "intact" if start is None else "intact-since-anchor",
        "chain": name.hex(),
        "entries": end.seq,
        "head": view.head_json(end),
        "anchored_through": held.through,
        "unanchored_entries": end.seq - (held.through or 0),
        "anchors": _anchors(session, tenant_id, seen),
        "log": _log(seen),
        "head_store": _head_store(seen, outside),
    }
    if start is not None:
        answer["since"] = {**view.head_json(start.head), "leaf_index": start.index}
        answer["leaves_read_from"] = start.read_from
    return answer


def _anchors(session: Session, tenant_id: UUID, seen: Seen) -> dict[str, Any]:
    wanted = select(func.count()).where(AuditAnchor.tenant_id == tenant_id)
    if seen.start is not None:
        wanted = wanted.where(AuditAnchor.seq > seen.start.head.seq)
    total = session.execute(wanted).scalar_one() + (seen.start is not None)
    standing = anchors.standing(session, tenant_id)
    off = standing.disabled_since
    return {
        "enabled": standing.enabled,
        "disabled_since": None if off is None else rfc3339(off),
        "checked": seen.held.checked,
        "pending": max(total - seen.held.checked, 0),
        "leaf_index": seen.held.index,
        **_vouchers(seen),
    }


def _vouchers(seen: Seen) -> dict[str, Any]:
    if seen.stamps is None:
        return NOT_VERIFIED
    if seen.last is None or seen.held.index is None:
        return seen.stamps.represent(None)
    return seen.stamps.represent((seen.last.generation.number, seen.held.index))


def _head_store(seen: Seen, outside: Outside) -> str:
    if not outside.kept:
        return status.NO_HEAD
    return "kept" if outside.head is not None and seen.last is not None else "empty"


def _log(seen: Seen) -> dict[str, Any] | None:
    if seen.last is None:
        return None
    last = seen.last.checkpoint
    return {
        "origin": last.origin,
        "size": last.size,
        "root": last.root.hex(),
        "predecessors": [_before(each) for each in seen.successions],
    }


def _before(ended: Succession) -> dict[str, Any]:
    """Return an ended log, and how many of its leaves are held: only those were verified."""
    return {"origin": ended.before.origin, "size": ended.before.size, "held": ended.held}
