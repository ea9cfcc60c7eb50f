"""Sessions: one run of an agent for a principal, opened once and completed once."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import feeds, json_columns
from app.core.callers import Caller
from app.core.delivery import events
from app.errors import NotFound, SessionCompleted
from app.models import Agent, AgentSession


class Status(enum.StrEnum):
    """Statuses of a session."""

    OPEN = "open"
    COMPLETED = "completed"


class Outcome(enum.StrEnum):
    """How a session ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


def create(
    session: Session,
    caller: Caller,
    *,
    agent_id: UUID,
    principal: str,
    title: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> AgentSession:
    """Open a session of an agent on behalf of a principal.

    Raises `NotFound`, with the same text, when the agent does not exist and when agent or principal
    are outside the caller's pin.
    """
    now = session.scalar(
        select(func.clock_timestamp()).where(
            Agent.tenant_id == caller.tenant_id, Agent.id == agent_id
        )
    )
    if now is None or not caller.may_touch(agent_id, principal):
        raise NotFound("There is no agent with this id that the key used may act for here.")
    opened = AgentSession(
        tenant_id=caller.tenant_id,
        id=ids.new(now),
        agent_id=agent_id,
        principal=principal,
        title=title,
        metadata_json=json_columns.to_text(metadata),
        status=Status.OPEN,
        created_at=now,
    )
    session.add(opened)
    session.flush()
    return opened


def rows(
    session: Session, caller: Caller, filters: Mapping[str, object], before: UUID | None, limit: int
) -> Sequence[AgentSession]:
    """Return one page of the sessions that the caller may see (see `feeds.newest`)."""
    found = session.scalars(feeds.newest(AgentSession, caller, filters, before, limit)).all()
    return feeds.fitting(found, lambda each: each.metadata_json)


def find(session: Session, caller: Caller, session_id: UUID | None) -> AgentSession:
    """Return one session; raises `NotFound` if it does not exist or the caller may not see it."""
    missing = "There is no session with this id."
    return feeds.find(session, AgentSession, caller, session_id, missing)


def complete(
    session: Session,
    caller: Caller,
    session_id: UUID | None,
    *,
    outcome: Outcome,
    summary: str | None = None,
) -> AgentSession:
    """Complete a session with its outcome and emit `session.completed`.

    Of concurrent calls exactly one succeeds. Raises `SessionCompleted` in the others, and
    `NotFound` if the session does not exist or the caller may not see it.
    """
    completed = session.scalars(
        update(AgentSession)
        .where(
            *feeds.visible(AgentSession, caller),
            AgentSession.id == session_id,
            AgentSession.status == Status.OPEN,
        )
        .values(
            status=Status.COMPLETED,
            outcome=outcome,
            summary=summary,
            completed_at=func.clock_timestamp(),
        )
        .returning(AgentSession)
    ).one_or_none()
    if completed is None or completed.completed_at is None:
        found = find(session, caller, session_id)
        raise SessionCompleted(
            f"This session is completed already; its outcome is {found.outcome}. "
            "A session is completed once."
        )
    at = completed.completed_at
    event = events.NewEvent("session.completed", represent(completed), at, completed.id)
    events.emit(session, caller.tenant_id, [event])
    return completed


def represent(row: AgentSession) -> dict[str, Any]:
    """Return the session's JSON representation, in GET and in `session.completed`."""
    return {
        "id": ids.text("ses", row.id),
        "agent_id": ids.text("agt", row.agent_id),
        "principal": row.principal,
        "title": row.title,
        "metadata": json_columns.from_text(row.metadata_json),
        "status": row.status,
        "outcome": row.outcome,
        "summary": row.summary,
        "created_at": rfc3339(row.created_at),
        "completed_at": None if row.completed_at is None else rfc3339(row.completed_at),
    }
