"""Pages of the audit chain, filtered.

Entries are answered from `body`, the hashed bytes. `app/core/verification/` verifies; a read fails
only where an entry cannot be parsed.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, select
from sqlalchemy.orm import Session

from app.core.callers import Caller
from app.errors import AuditChainBroken
from app.ledger import hash_chain
from app.ledger.hash_chain import Head
from app.lib import canonical_json
from app.models import AuditEntry


class Order(enum.StrEnum):
    """Which end of the chain a list begins with."""

    ASCENDING = "asc"
    DESCENDING = "desc"


def rows(
    session: Session, caller: Caller, filters: Mapping[str, Any], after: int | None, limit: int
) -> Sequence[AuditEntry]:
    """Return one page of the caller's chain.

    `filters` holds `order` and may hold `action`, `since` (included) and `until` (not included).
    `after` is the `seq` where the page before ended, in that order.
    """
    wanted = select(AuditEntry).where(
        AuditEntry.tenant_id == caller.tenant_id, *_conditions(caller, filters)
    )
    if filters["order"] == Order.ASCENDING:
        wanted = wanted.where(AuditEntry.seq > (after or 0)).order_by(AuditEntry.seq)
    else:
        newer = () if after is None else (AuditEntry.seq < after,)
        wanted = wanted.where(*newer).order_by(AuditEntry.seq.desc())
    return session.scalars(wanted.limit(limit)).all()


def represent(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry as it is answered: what its body says, and its hash.

    Raises `AuditChainBroken` when the stored bytes are no entry: no append ever wrote such.
    """
    try:
        fields = canonical_json.parse(entry.body)
    except (canonical_json.NotJSON, canonical_json.NotIJSON) as error:
        raise _unreadable(entry, str(error)) from None
    if not isinstance(fields, dict):
        raise _unreadable(entry, "JSON that is no object")
    if fields.keys() != hash_chain.MEMBERS:
        raise _unreadable(entry, "other members")
    if not all(_names_something(fields[part]) for part in ("actor", "target")):
        raise _unreadable(entry, "an actor or a target without type and id")
    return {**fields, "hash": entry.hash.hex()}


def head_json(head: Head) -> dict[str, Any]:
    """Return a head as it is answered."""
    return {"seq": head.seq, "hash": head.hash}


def broken(seq: int, reason: str, expected: str, found: str) -> AuditChainBroken:
    """Return the error that says where a chain breaks first, and how."""
    return AuditChainBroken(
        f"The audit chain is broken at entry {seq}: expected {expected}, found {found}.",
        {"seq": seq, "reason": reason, "expected": expected, "found": found},
    )


def _names_something(part: object) -> bool:
    return isinstance(part, dict) and all(
        isinstance(part.get(name), str) for name in ("type", "id")
    )


def _unreadable(entry: AuditEntry, found: str) -> AuditChainBroken:
    return broken(entry.seq, "not_json", "a JSON object with the members of an entry", found)


def _conditions(caller: Caller, filters: Mapping[str, Any]) -> Iterator[ColumnElement[bool]]:
    action, since, until = (filters.get(name) for name in ("action", "since", "until"))
    if action is not None:
        yield AuditEntry.action == action
    # Entries are timed while the head is locked, so `at` rises with `seq`: the index by time finds
    # the two ends of a range, and a page walks along the chain between them.
    if since is not None:
        yield AuditEntry.seq >= _end_of_range(
            caller, AuditEntry.at >= since, AuditEntry.at.asc(), AuditEntry.seq.asc()
        )
    if until is not None:
        yield AuditEntry.seq <= _end_of_range(
            caller, AuditEntry.at < until, AuditEntry.at.desc(), AuditEntry.seq.desc()
        )


def _end_of_range(
    caller: Caller, inside: ColumnElement[bool], *order: ColumnElement[Any]
) -> ScalarSelect[int]:
    return (
        select(AuditEntry.seq)
        .where(AuditEntry.tenant_id == caller.tenant_id, inside)
        .order_by(*order)
        .limit(1)
        .scalar_subquery()
        .correlate(None)
    )
