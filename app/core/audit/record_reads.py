"""Reads of content in the audit chain, where AUDIT_READS is on: `record.read`, `session.read`.

One entry a key, record (or session, read as a whole) and day (UTC). It is committed before the
content leaves.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller
from app.database import Tx, cursor

_PREFIXES = {"record": "rec", "session": "ses"}

# Of two concurrent reads the second waits for the first one's row, and so for its entry.
_FIRST_TODAY = """
INSERT INTO record_reads (tenant_id, day, key_id, record_id)
SELECT %s, (clock_timestamp() AT TIME ZONE 'UTC')::date, %s, id
  FROM unnest(%b::uuid[]) AS id ORDER BY id
ON CONFLICT DO NOTHING RETURNING record_id
"""
_FORGET = "DELETE FROM record_reads WHERE day < (clock_timestamp() AT TIME ZONE 'UTC')::date"


def note(session: Session, caller: Caller, subjects: Sequence[UUID], kind: str = "record") -> None:
    """Append `record.read` for each record that the caller's key reads for the first time today.

    With the `kind` "session" it is `session.read`: one entry for the content of all its records.

    Call it last in a transaction, and send the content after its commit. Raises `AuditChainBroken`:
    then the content may not leave.
    """
    wanted = (caller.tenant_id, caller.key_id, list(subjects))
    first = cursor(session).execute(_FIRST_TODAY, wanted).fetchall()
    for (subject,) in first:
        target = (kind, ids.text(_PREFIXES[kind], subject))
        chain.append_by(session, caller, f"{kind}.read", target=target)


def forget_old(tx: Tx) -> int:
    """Delete who read what on past days, of all tenants; return how many."""
    return cursor(tx).execute(_FORGET).rowcount
