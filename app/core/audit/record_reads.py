"""Reads of content in the audit chain, where AUDIT_READS is on: `record.read`.

One entry a key, record and day (UTC). It is committed before the content leaves.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller
from app.database import Tx, cursor

ACTION = "record.read"

# Of two concurrent reads the second waits for the first one's row, and so for its entry.
_FIRST_TODAY = """
INSERT INTO record_reads (tenant_id, day, key_id, record_id)
SELECT %s, (clock_timestamp() AT TIME ZONE 'UTC')::date, %s, id
  FROM unnest(%b::uuid[]) AS id ORDER BY id
ON CONFLICT DO NOTHING RETURNING record_id
"""
_FORGET = "DELETE FROM record_reads WHERE day < (clock_timestamp() AT TIME ZONE 'UTC')::date"


def note(session: Session, caller: Caller, record_ids: Sequence[UUID]) -> None:
    """Append `record.read` for each record that the caller's key reads for the first time today.

    Call it last in a transaction, and send the content after its commit. Raises `AuditChainBroken`:
    then the content may not leave.
    """
    wanted = (caller.tenant_id, caller.key_id, list(record_ids))
    first = cursor(session).execute(_FIRST_TODAY, wanted).fetchall()
    for (record_id,) in first:
        chain.append_by(session, caller, ACTION, target=("record", ids.text("rec", record_id)))


def forget_old(tx: Tx) -> int:
    """Delete who read what on past days, of all tenants; return how many."""
    return cursor(tx).execute(_FORGET).rowcount
