"""Exports an audit chain, or a range of it, as a stream.

The chain only grows, so all entries up to one head are a snapshot. The range is read once, the
entries in parts, each in a short transaction: a slow reader holds no connection.
"""

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.anchoring import anchors
from app.core.audit import chain, view
from app.core.callers import Caller
from app.database import database_now
from app.ledger.hash_chain import START, Head
from app.lib import canonical_json
from app.models import AuditAnchor, AuditEntry

PART = 500
MOST_ANCHORS = 10
"""The newest suffice: each binds all entries before it."""


class Layout(enum.StrEnum):
    """Layouts of a line: the bytes that were hashed, or a flat event for readers of logs."""

    CHAIN = "chain"
    EVENTS = "events"


@dataclass(frozen=True)
class Range:
    """The entries behind one head, up to another."""

    after: Head
    last: Head


def begin(
    session: Session,
    caller: Caller,
    layout: Layout = Layout.CHAIN,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Range:
    """Append `audit.export` and return what the export covers.

    Entries appended at `since` or later and before `until`; without `until` that entry is the last.
    """
    target = ("tenant", ids.text("ten", caller.tenant_id))
    given = {"since": since and rfc3339(since), "until": until and rfc3339(until)}
    details = {name: value for name, value in given.items() if value is not None}
    if layout is not Layout.CHAIN:
        details["layout"] = str(layout)
    own = chain.append_by(session, caller, "audit.export", target=target, details=details)
    after = START if since is None else view.head_before(session, caller, since)
    return Range(after, own if until is None else view.head_before(session, caller, until))


def part(session: Session, caller: Caller, after: int, last: int) -> Sequence[AuditEntry]:
    """Return up to `PART` entries behind the number `after`, oldest first, none beyond `last`.

    Raises `AuditChainBroken` when one of them is missing.
    """
    through = min(after + PART, last)
    entries = session.scalars(
        select(AuditEntry)
        .where(
            AuditEntry.tenant_id == caller.tenant_id,
            AuditEntry.seq > after,
            AuditEntry.seq <= through,
        )
        .order_by(AuditEntry.seq)
    ).all()
    for seq, entry in zip(range(after + 1, through + 1), [*entries, None], strict=False):
        if entry is None or entry.seq != seq:
            raise view.broken(seq, "missing", f"entry {seq}", "none")
    return entries


def line(entry: AuditEntry, layout: Layout = Layout.CHAIN) -> bytes:
    """Return an entry's line: its canonical JSON, `hash` included, or a flat event.

    Raises `AuditChainBroken` when the stored bytes are no JSON object.
    """
    shown = view.represent(entry)
    return canonical_json.dumps(shown) + b"\n" if layout is Layout.CHAIN else _event(_flat(shown))


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry as an event: `at` first, no object inside, `details` as text.

    The same detail is a number in one action and a text in another, which indexes of logs refuse.
    """
    actor, target = entry["actor"], entry["target"]
    person = actor.get("person") or {}
    return {
        "at": entry["at"],
        "type": "entry",
        "seq": entry["seq"],
        "action": entry["action"],
        "outcome": entry.get("outcome"),
        "actor_type": actor["type"],
        "actor_id": actor["id"],
        "actor_role": actor.get("role"),
        **{f"actor_{name}": person[name] for name in sorted(person)},
        "target_type": target["type"],
        "target_id": target["id"],
        "origin": entry.get("origin"),
        "details": canonical_json.dumps(entry["details"]).decode(),
        "request_id": entry["request_id"],
        "tenant_id": entry["tenant_id"],
        "hash": entry["hash"],
    }


def _event(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def trailer(session: Session, tenant_id: UUID, told: Range, layout: Layout = Layout.CHAIN) -> bytes:
    """Return the last line of an export, without which it is incomplete.

    It names the heads that the lines are between, and the newest anchors among them.
    """
    count = told.last.seq - told.after.seq
    if layout is Layout.EVENTS:
        return _event(
            {
                "at": rfc3339(database_now(session)),
                "type": "trailer",
                "entries": count,
                "after_seq": told.after.seq,
                "after_hash": told.after.hash,
                "head_seq": told.last.seq,
                "head_hash": told.last.hash,
            }
        )
    found = session.scalars(
        select(AuditAnchor)
        .where(
            AuditAnchor.tenant_id == tenant_id,
            AuditAnchor.seq > told.after.seq,
            AuditAnchor.seq <= told.last.seq,
        )
        .order_by(AuditAnchor.seq.desc())
        .limit(MOST_ANCHORS)
    )
    members = {
        "type": "trailer",
        "entries": count,
        "after": view.head_json(told.after),
        "head": view.head_json(told.last),
        "anchors": [{"seq": each.seq, "hash": each.hash.hex()} for each in found],
        "anchors_total": anchors.count(session, tenant_id, told.after.seq, told.last.seq),
    }
    return canonical_json.dumps(members) + b"\n"
