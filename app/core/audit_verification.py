"""Verifying the audit chain: every hash, every link, and the head that must be its end.

The chain is streamed through `app/ledger/hash_chain.py` in one snapshot and constant memory.
Nothing in the database can prove that its end was not cut off together with the head: for that a
caller brings a head kept from an earlier answer.
"""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import structlog
from psycopg import Cursor
from sqlalchemy.orm import Session

from app import ids
from app.core import audit_view
from app.core.callers import Caller
from app.database import cursor
from app.errors import AuditChainBroken
from app.ledger import hash_chain
from app.ledger.hash_chain import Head
from app.models import AuditHead

_log = structlog.get_logger(__name__)

_ROWS_AT_ONCE = 2000

_ENTRIES = """
SELECT seq, body, hash, action, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
  FROM audit_entries WHERE tenant_id = %s ORDER BY seq
"""


def verify(session: Session, caller: Caller, kept: Head | None = None) -> dict[str, Any]:
    """Recompute the caller's chain and return what was found, as it is answered.

    Needs a snapshot. `kept` is a head of this chain from an earlier answer or export. Raises
    `AuditChainBroken` for the first bad entry, and logs it.
    """
    try:
        head = _verify(session, caller, kept)
    except AuditChainBroken as error:
        _log.critical(
            "audit_chain_broken",
            tenant_id=ids.text("ten", caller.tenant_id),
            # Whoever reads the alarm must see whether the chain disagrees with itself or a caller.
            kept=kept and audit_view.head_json(kept),
            **error.report,
        )
        raise
    return {
        "status": "intact",
        "entries": head.seq,
        "head": audit_view.head_json(head),
        "anchored_through": None,
        "unanchored_entries": head.seq,
        "anchors": {"checked": 0},
    }


def _verify(session: Session, caller: Caller, kept: Head | None) -> Head:
    end = _head(session, caller.tenant_id)
    connection = cursor(session).connection
    with connection.cursor("audit_entries") as stream:
        stream.itersize = _ROWS_AT_ONCE
        stream.execute(_ENTRIES, (caller.tenant_id,), binary=True)
        seen = hash_chain.verify(
            _filed(stream),
            tenant_id=ids.text("ten", caller.tenant_id),
            known=() if kept is None else (kept,),
            end=end,
        )
    if seen.broken is not None:
        found = seen.broken
        raise audit_view.broken(found.seq, found.reason, found.expected, found.found)
    return seen.head


def _head(session: Session, tenant_id: UUID) -> Head:
    found = session.get(AuditHead, tenant_id)
    if found is None:
        raise audit_view.broken(1, "missing", "a row in audit_heads", "none")
    return Head(found.seq, found.hash.hex())


def _filed(rows: Cursor[Any]) -> Iterator[tuple[int, bytes, bytes]]:
    """Pass the rows on, and hold what they are filed under against each body once it is proven.

    `action` and `at` are copies for filters, and a forged one hides an entry from a filtered list.
    A body is canonical, so it begins with the one and has the other before its details.
    """
    for seq, body, digest, action, at in rows:
        yield seq, body, digest
        if not (
            body.startswith(b'{"action":"%b",' % action.encode())
            and b'"at":"%b","details":' % at.encode() in body
        ):
            raise audit_view.broken(
                seq, "misfiled", "the action and time in its body", f"{action} and {at} beside it"
            )
