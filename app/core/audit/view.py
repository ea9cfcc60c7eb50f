"""Pages of the audit chain, filtered.

Entries are answered from `body`, the hashed bytes. `app/core/verification/` verifies; a read fails
only where an entry cannot be parsed.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from psycopg.rows import scalar_row
from sqlalchemy import ARRAY, ColumnElement, ScalarSelect, Text, cast, func, literal, select, true
from sqlalchemy.orm import Session

from app.core.callers import Caller
from app.database import cursor
from app.errors import AuditChainBroken
from app.ledger import hash_chain
from app.ledger.hash_chain import START, Head
from app.lib import canonical_json
from app.models import AuditEntry, KnownPerson


class Order(enum.StrEnum):
    """Which end of the chain a list begins with."""

    ASCENDING = "asc"
    DESCENDING = "desc"


# A loose index scan: one probe an action.
_ACTIONS = """
WITH RECURSIVE kinds AS (
    (SELECT action FROM audit_entries
      WHERE tenant_id = %(tenant)s AND action >= %(begin)s ORDER BY action LIMIT 1)
    UNION ALL
    SELECT (SELECT e.action FROM audit_entries AS e
             WHERE e.tenant_id = %(tenant)s AND e.action > kinds.action ORDER BY e.action LIMIT 1)
      FROM kinds WHERE starts_with(kinds.action, %(begin)s))
SELECT action FROM kinds WHERE starts_with(action, %(begin)s)
"""


def rows(
    session: Session, caller: Caller, filters: Mapping[str, Any], after: int | None, limit: int
) -> Sequence[AuditEntry]:
    """Return one page of the caller's chain.

    `filters` holds `order` and may hold `actor`, `target`, `action` (how it begins), `outcome`,
    `since` (included) and `until` (not included). `after` is the `seq` where the page before ended,
    in that order.
    """
    wanted = [AuditEntry.tenant_id == caller.tenant_id, *_conditions(caller, filters)]
    seq = AuditEntry.seq
    ascending = filters["order"] == Order.ASCENDING
    if after is not None:
        wanted.append(seq > after if ascending else seq < after)
    order = seq.asc() if ascending else seq.desc()
    action = filters.get("action")
    if action is not None:
        # An index has the entries of one action in order. Several are merged from a page of each:
        # there are some fifty.
        named = {"tenant": caller.tenant_id, "begin": action}
        actions = cursor(session, scalar_row).execute(_ACTIONS, named).fetchall()
        kinds = func.unnest(cast(actions, ARRAY(Text)))
        kind = kinds.table_valued("action", name="kinds").render_derived()
        of_one = select(seq).where(*wanted, AuditEntry.action == kind.c.action)
        found = of_one.order_by(order).limit(limit).correlate(kind).lateral("found")
        merged = select(found.c.seq).select_from(kind.join(found, true()))
        ordered = merged.order_by(found.c.seq if ascending else found.c.seq.desc()).limit(limit)
        wanted = [AuditEntry.tenant_id == caller.tenant_id, seq.in_(ordered)]
    return session.scalars(select(AuditEntry).where(*wanted).order_by(order).limit(limit)).all()


def represent(entry: AuditEntry) -> dict[str, Any]:
    """Return an entry as it is answered: what its body says, and its hash.

    Raises `AuditChainBroken` when the stored bytes are no entry: no append ever wrote such.
    """
    found = "other members, or an actor or a target without type and id"
    try:
        fields: Any = canonical_json.parse(entry.body or b"")
    except (canonical_json.NotJSON, canonical_json.NotIJSON) as error:
        fields, found = None, str(error)
    match fields:
        case {"actor": {"type": str(), "id": str()}, "target": {"type": str(), "id": str()}}:
            if hash_chain.is_entry(fields):
                return {**fields, "hash": entry.hash.hex()}
    raise broken(entry.seq, "not_json", "a JSON object with the members of an entry", found)


def head_before(session: Session, caller: Caller, moment: datetime) -> Head:
    """Return the head that the caller's chain had before a moment."""
    found = session.execute(
        select(AuditEntry.seq, AuditEntry.hash)
        .where(AuditEntry.tenant_id == caller.tenant_id, AuditEntry.at < moment)
        .order_by(AuditEntry.at.desc(), AuditEntry.seq.desc())
        .limit(1)
    ).one_or_none()
    return START if found is None else Head(found.seq, found.hash.hex())


def head_json(head: Head) -> dict[str, Any]:
    """Return a head as it is answered."""
    return {"seq": head.seq, "hash": head.hash}


def broken(seq: int, reason: str, expected: str, found: str) -> AuditChainBroken:
    """Return the error that says where a chain breaks first, and how."""
    return AuditChainBroken(
        f"The audit chain is broken at entry {seq}: expected {expected}, found {found}.",
        {"seq": seq, "reason": reason, "expected": expected, "found": found},
    )


def _conditions(caller: Caller, filters: Mapping[str, Any]) -> Iterator[ColumnElement[bool]]:
    since, until = (filters.get(name) for name in ("since", "until"))
    actor = filters.get("actor")
    if actor is not None and "@" in actor:
        filters = {**filters, "actor": None}
        person = select(literal("usr_") + func.replace(cast(KnownPerson.id, Text), "-", ""))
        same = func.lower(KnownPerson.email) == actor.lower()
        yield AuditEntry.actor.in_(person.where(KnownPerson.tenant_id == caller.tenant_id, same))
    for name in ("actor", "target", "outcome"):
        if filters.get(name) is not None:
            yield getattr(AuditEntry, name) == filters[name]
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
