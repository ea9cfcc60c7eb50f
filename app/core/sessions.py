"""Sessions: one run of an agent for a principal, opened once and completed once."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from app import ids
from app.core import feeds
from app.core.callers import Caller
from app.core.delivery import event_types, events
from app.database import Tx, cursor
from app.errors import ExternalIdInUse, NotFound, SessionCompleted
from app.models import Agent, AgentSession
from app.schemas import fields
from app.schemas.schema import AnswerSchema

_NO_AGENT = "There is no agent with this id that the key used may act for here."


class SessionStatus(enum.StrEnum):
    """Statuses of a session."""

    OPEN = "open"
    COMPLETED = "completed"


class Outcome(enum.StrEnum):
    """How a session ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


class GivenOutcome(enum.StrEnum):
    """The outcomes that a caller may give; the service itself abandons."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class SessionSchema(AnswerSchema):
    """A session."""

    id = fields.Id("ses")
    external_id = fields.ExternalId(allow_none=True)
    agent_id = fields.Id("agt")
    principal = fields.Text(
        200,
        description="The person or organisation that the agent acts for, as you name them.",
        example="alice@example.com",
    )
    title = fields.Text(500, allow_none=True)
    metadata = fields.JsonObject(64 * 1024, stored_in="metadata_json", allow_none=True)
    status = fields.Choice(SessionStatus)
    outcome = fields.Choice(Outcome, allow_none=True)
    summary = fields.Text(10_000, allow_none=True)
    created_at = fields.Time()
    completed_at = fields.Time(allow_none=True)


represent = SessionSchema.of

COMPLETED = event_types.Entry(
    "A run of an agent ended. `data` is the session with its outcome.",
    SessionSchema.json_schema(
        status={"const": "completed"},
        outcome=fields.Choice(Outcome).described(),
        completed_at=fields.Time().described(),
    ),
    {
        "id": "ses_019a0b7c4c1d7e2f9a3b4c5d6e7f8091",
        "external_id": "run-2026-01-31-0007",
        "agent_id": "agt_019a0b7c3b0c7d1e8f2a3b4c5d6e7f80",
        "principal": "maria@example.com",
        "title": "Pay the open invoices of January",
        "metadata": {"ticket": "FIN-2041"},
        "status": "completed",
        "outcome": "succeeded",
        "summary": "7 invoices paid, 1 set aside for a second person.",
        "created_at": "2026-01-31T11:58:02.000211Z",
        "completed_at": "2026-01-31T12:04:40.718830Z",
    },
)
"""What `session.completed` is, for the catalogue of event types."""


OPENED = event_types.Entry(
    "A session was opened. Only webhooks whose event_types name this type get it. `data` is the "
    "session.",
    SessionSchema.json_schema(status={"const": "open"}),
    COMPLETED.example | {"status": "open", "outcome": None, "summary": None, "completed_at": None},
)
"""What `session.opened` is."""

# In one order, so that two transactions which open the same sessions do not deadlock.
_OPEN = """
INSERT INTO sessions (tenant_id, id, external_id, agent_id, principal, title, status, created_at)
SELECT %s, id, external_id, agent_id, principal, title, 'open', %s
  FROM unnest(%b::uuid[], %s::text[], %b::uuid[], %s::text[], %s::text[])
       AS new (id, external_id, agent_id, principal, title)
 ORDER BY external_id
    ON CONFLICT (tenant_id, external_id) WHERE external_id IS NOT NULL DO NOTHING
"""
_KNOWN = """
SELECT external_id, id, agent_id, principal, status FROM sessions
 WHERE tenant_id = %s AND external_id = ANY (%s)
"""


class NewSession(NamedTuple):
    """A session by its owner's id, with what it is opened with if it does not exist."""

    external_id: str
    agent_id: UUID
    principal: str
    title: str | None = None


class KnownSession(NamedTuple):
    """A session as `get_or_create` found or opened it."""

    id: UUID
    agent_id: UUID
    principal: str
    status: str


def create(
    session: Session,
    caller: Caller,
    *,
    agent_id: UUID,
    principal: str,
    external_id: str | None = None,
    title: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> AgentSession:
    """Open a session of an agent on behalf of a principal.

    Raises `NotFound`, with the same text, when the agent does not exist and when agent or principal
    are outside the caller's pin, and `ExternalIdInUse` when another session has the external id.
    """
    now = session.scalar(
        select(func.clock_timestamp()).where(
            Agent.tenant_id == caller.tenant_id, Agent.id == agent_id
        )
    )
    if now is None or not caller.may_touch(agent_id, principal):
        raise NotFound(_NO_AGENT)
    opened = insert(AgentSession).values(
        tenant_id=caller.tenant_id,
        id=ids.new(now),
        external_id=external_id,
        agent_id=agent_id,
        principal=principal,
        title=title,
        metadata_json=fields.json_text(metadata),
        status=SessionStatus.OPEN,
        created_at=now,
    )
    found = session.scalars(opened.on_conflict_do_nothing().returning(AgentSession)).one_or_none()
    if found is None:
        raise ExternalIdInUse("Another session has this external_id.")
    return found


def put(
    session: Session,
    caller: Caller,
    external_id: str,
    *,
    principal: str,
    agent_id: UUID | None = None,
    agent_external_id: str | None = None,
    **beside: Any,
) -> tuple[AgentSession, bool]:
    """Get or create the session with this external id, then set `title` and `metadata` if given.

    The agent is named by one of its ids. Returns the session, and whether it was opened now. Raises
    `NotFound` when the agent does not exist, or agent or principal are outside the caller's pin,
    and `ExternalIdInUse` when the session is of another agent or principal.
    """
    named = Agent.id == agent_id if agent_id else Agent.external_id == agent_external_id
    agent_id = session.scalar(select(Agent.id).where(Agent.tenant_id == caller.tenant_id, named))
    if agent_id is None or not caller.may_touch(agent_id, principal):
        raise NotFound(_NO_AGENT)
    same = select(AgentSession).where(
        AgentSession.tenant_id == caller.tenant_id, AgentSession.external_id == external_id
    )
    if beside:
        same = same.with_for_update(key_share=True)
    found = session.scalar(same)
    if found is None:
        whose: dict[str, Any] = {"agent_id": agent_id, "principal": principal}
        try:
            return create(session, caller, external_id=external_id, **whose, **beside), True
        except ExternalIdInUse:
            # It was opened meanwhile, and the next statement sees it.
            found = session.scalars(same).one()
    if (found.agent_id, found.principal) != (agent_id, principal):
        raise ExternalIdInUse("The session with this external_id is of another agent or principal.")
    if "title" in beside:
        found.title = beside["title"]
    if "metadata" in beside:
        found.metadata_json = fields.json_text(beside["metadata"])
    session.flush()
    return found, False


def get_or_create(tx: Tx, tenant_id: UUID, wanted: Iterable[NewSession]) -> dict[str, KnownSession]:
    """Return many sessions by external id, those opened that did not exist.

    One that exists may be of another agent or principal, or completed: the caller looks. Agents
    must exist. Concurrent calls agree on one session for each external id. Call it once in a
    transaction, as `agents.get_or_create`.
    """
    new = {each.external_id: each for each in wanted}
    if not new:
        return {}
    cur = cursor(tx)
    ((now,),) = cur.execute("SELECT clock_timestamp()").fetchall()
    rows = [(ids.new(now), *each) for each in new.values()]
    cur.execute(_OPEN, (tenant_id, now, *map(list, zip(*rows, strict=True))))
    found = cur.execute(_KNOWN, (tenant_id, list(new))).fetchall()
    return {external_id: KnownSession(*row) for external_id, *row in found}


def rows(
    session: Session, caller: Caller, filters: Mapping[str, object], before: UUID | None, limit: int
) -> Sequence[AgentSession]:
    """Return one page of the sessions that the caller may see (`feeds.page`).

    The words of the filter `q` are those of title, external id and principal.
    """
    texts = (AgentSession.title, AgentSession.external_id, AgentSession.principal)
    text = func.concat_ws(" ", *texts)
    return feeds.page(session, AgentSession, caller, filters, before, limit, text)


def find(session: Session, caller: Caller, session_id: UUID | None) -> AgentSession:
    """Return one session; raises `NotFound` if it does not exist or the caller may not see it."""
    missing = "There is no session with this id."
    return feeds.find(session, AgentSession, caller, session_id, missing)


def of(session: Session, tenant_id: UUID, session_ids: Sequence[UUID]) -> Sequence[AgentSession]:
    """Return a tenant's sessions by their ids."""
    wanted = (AgentSession.tenant_id == tenant_id, AgentSession.id.in_(session_ids))
    return session.scalars(select(AgentSession).where(*wanted)).all()


def complete(
    session: Session,
    caller: Caller,
    session_id: UUID | None,
    *,
    outcome: GivenOutcome,
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
            AgentSession.status == SessionStatus.OPEN,
        )
        .values(
            status=SessionStatus.COMPLETED,
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
