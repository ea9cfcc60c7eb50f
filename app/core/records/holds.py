"""Legal holds: while one stands, the content of its records does not expire.

A hold covers one record, the records of one session or agent, or those created in a range of time,
later ones included. It keeps what is still stored when it is made, due or not.
"""

import enum
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, and_, select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import agents, sessions
from app.core.audit import chain
from app.core.callers import Caller
from app.core.records import expiry, records
from app.database import database_now
from app.errors import NotFound
from app.models import Hold
from app.schemas import fields, party_fields
from app.schemas.schema import AnswerSchema

SCOPES = ("record_id", "session_id", "agent_id", "since", "until")
"""The fields that say which records a hold covers."""
_PREFIXES = {"record_id": "rec", "session_id": "ses", "agent_id": "agt"}


class HoldStatus(enum.StrEnum):
    """Whether a hold keeps its records."""

    STANDING = "standing"
    RELEASED = "released"


class HoldSchema(AnswerSchema):
    """A legal hold."""

    id = fields.Id("hld")
    reason = fields.Text(1000)
    record_id = fields.Id("rec", allow_none=True)
    session_id = fields.Id("ses", allow_none=True)
    agent_id = fields.Id("agt", allow_none=True)
    since = fields.Time(allow_none=True)
    until = fields.Time(allow_none=True)
    status = fields.Choice(HoldStatus)
    created_at = fields.Time()
    created_by = party_fields.CallerId()
    released_at = fields.Time(allow_none=True)
    released_by = party_fields.CallerId(allow_none=True)


def represent(hold: Hold) -> dict[str, Any]:
    """Return a hold's JSON representation."""
    standing = hold.released_at is None
    return HoldSchema.of(hold, status="standing" if standing else "released")


def create(session: Session, caller: Caller, reason: str, scope: Mapping[str, Any]) -> Hold:
    """Place a hold on `scope`: one id by its field's name, or `since` and `until`.

    Every record that it covers, whose content is stored when this commits, stays. Raises `NotFound`
    for a record, session or agent that does not exist.
    """
    for name, find_in in (("record_id", records), ("session_id", sessions), ("agent_id", agents)):
        if name in scope:
            find_in.find(session, caller, scope[name])
    expiry.take_turn(session, caller.tenant_id)
    now = database_now(session)
    hold = Hold(
        tenant_id=caller.tenant_id,
        id=ids.new(now),
        reason=reason,
        created_at=now,
        created_by=caller.key_id,
        **scope,
    )
    session.add(hold)
    session.flush()
    _audit(session, caller, hold, "create", {"reason": reason})
    return hold


def release(session: Session, caller: Caller, hold_id: UUID | None) -> None:
    """Release a hold; what it kept beyond its time expires in the next run.

    Does nothing for one that was released. Raises `NotFound`.
    """
    find(session, caller, hold_id)
    expiry.take_turn(session, caller.tenant_id)
    hold = find(session, caller, hold_id, anew=True)
    if hold.released_at is not None:
        return
    hold.released_at = database_now(session)
    hold.released_by = caller.key_id
    session.flush()
    expiry.enqueue_released(session, caller.tenant_id, hold)
    _audit(session, caller, hold, "release", {})


def find(session: Session, caller: Caller, hold_id: UUID | None, *, anew: bool = False) -> Hold:
    """Return a hold, standing or released; raises `NotFound`. `anew`: as it is stored now."""
    wanted = select(Hold).where(Hold.tenant_id == caller.tenant_id, Hold.id == hold_id)
    found = session.scalar(wanted.execution_options(populate_existing=anew))
    if found is None:
        raise NotFound("There is no hold with this id.")
    return found


def rows(
    session: Session, caller: Caller, filters: Mapping[str, Any], before: UUID | None, limit: int
) -> Sequence[Hold]:
    """Return one page of holds, newest first; `filters` as `HoldArgs` describes them."""
    conditions = [Hold.tenant_id == caller.tenant_id]
    if before is not None:
        conditions.append(Hold.id < before)
    for name, value in filters.items():
        if name == "status":
            is_standing = Hold.released_at.is_(None)
            conditions.append(is_standing if value == HoldStatus.STANDING else ~is_standing)
        elif name == "record_id":
            found = records.find(session, caller, value)
            subjects = (found.id, found.session_id, found.agent_id)
            conditions.append(_covering(found.created_at, *subjects))
        else:
            conditions.append(getattr(Hold, name) == value)
    wanted = select(Hold).where(*conditions).order_by(Hold.id.desc()).limit(limit)
    return session.scalars(wanted).all()


def standing_on(
    session: Session,
    caller: Caller,
    limit: int,
    *subjects: UUID,
    created_at: datetime | None = None,
) -> list[dict[str, Any]]:
    """Return the holds on any of these ids, or on the moment of a record, newest first, as JSON.

    None for a pinned key: holds belong to the whole tenant.
    """
    if caller.pin is not None:
        return []
    covering = (
        Hold.subject_id.in_(subjects) if created_at is None else _covering(created_at, *subjects)
    )
    wanted = select(Hold).where(
        Hold.tenant_id == caller.tenant_id, Hold.released_at.is_(None), covering
    )
    return [
        represent(each) for each in session.scalars(wanted.order_by(Hold.id.desc()).limit(limit))
    ]


def _covering(created_at: datetime, *subjects: UUID) -> ColumnElement[bool]:
    in_range = and_(Hold.since <= created_at, Hold.until > created_at)
    return Hold.subject_id.in_(subjects) | in_range


def _audit(
    session: Session, caller: Caller, hold: Hold, verb: str, details: Mapping[str, Any]
) -> None:
    """Append `hold.<verb>`, with what the hold covers."""
    scope = {}
    for name in SCOPES:
        value = getattr(hold, name)
        if isinstance(value, datetime):
            scope[name] = rfc3339(value)
        elif value is not None:
            scope[name] = ids.text(_PREFIXES[name], value)
    target = ("hold", ids.text("hld", hold.id))
    chain.append_by(session, caller, f"hold.{verb}", target=target, details={**scope, **details})
