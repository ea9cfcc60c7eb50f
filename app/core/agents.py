"""Agents: the AI agents that act for a tenant's people.

An agent belongs to the whole tenant: a pinned key sees its own agent, and cannot create or change.
Proofs have the name that an agent had when the record was made, so a rename is audited and the old
name kept.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app import ids
from app.core import feeds
from app.core.audit import chain
from app.core.callers import Caller
from app.database import Tx, cursor
from app.errors import NotFound
from app.models import Agent
from app.schemas import fields
from app.schemas.schema import AnswerSchema

MAX_METADATA = 64 * 1024

NAME: dict[str, Any] = {"example": "invoice-assistant"}
METADATA: dict[str, Any] = {
    "description": "Any JSON object, at most 64 KiB.",
    "example": {"model": "m-4", "team": "finance"},
}

_KEEP_NAME = "INSERT INTO former_agent_names (tenant_id, agent_id, name) VALUES (%s, %s, %s)"
_NAME_AT = """
SELECT coalesce((SELECT former.name FROM former_agent_names AS former
                  WHERE former.tenant_id = a.tenant_id AND former.agent_id = a.id
                    AND former.until > %s
                  ORDER BY former.until LIMIT 1), a.name)
  FROM agents AS a WHERE a.tenant_id = %s AND a.id = %s
"""
_FORMER_NAMES = """
SELECT name, until FROM former_agent_names WHERE tenant_id = %s AND agent_id = %s
 ORDER BY until DESC LIMIT 20
"""


class AgentSchema(AnswerSchema):
    """An agent."""

    id = fields.Id("agt")
    name = fields.Text(200, metadata=NAME)
    description = fields.Text(2000, allow_none=True)
    metadata = fields.JsonObject(
        MAX_METADATA, stored_in="metadata_json", allow_none=True, metadata=METADATA
    )
    created_at = fields.Time()
    updated_at = fields.Time()


represent = AgentSchema.of


def create(
    session: Session,
    caller: Caller,
    *,
    name: str,
    description: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> Agent:
    """Create an agent; names need not be unique.

    Raises `PinnedKey` when the caller is pinned: a new agent is outside its pin.
    """
    caller.require_no_pin()
    agent = Agent(
        tenant_id=caller.tenant_id,
        id=ids.new(),
        name=name,
        description=description,
        metadata_json=fields.json_text(metadata),
    )
    session.add(agent)
    session.flush()
    return agent


def rows(session: Session, caller: Caller, before: UUID | None, limit: int) -> Sequence[Agent]:
    """Return up to `limit` agents that the caller may see, newest first, older than `before`."""
    found = select(Agent).where(*_visible(caller)).order_by(Agent.id.desc()).limit(limit)
    if before is not None:
        found = found.where(Agent.id < before)
    return feeds.fitting(session.scalars(found).all(), lambda each: each.metadata_json)


def find(session: Session, caller: Caller, agent_id: UUID | None, *, lock: bool = False) -> Agent:
    """Return one agent; raises `NotFound` if it does not exist or the caller may not see it."""
    wanted = select(Agent).where(*_visible(caller), Agent.id == agent_id)
    if lock:
        wanted = wanted.with_for_update(key_share=True)
    agent = session.scalars(wanted).one_or_none()
    if agent is None:
        raise NotFound("There is no agent with this id.")
    return agent


def change(
    session: Session, caller: Caller, agent_id: UUID | None, wanted: Mapping[str, Any]
) -> Agent:
    """Set the fields (`name`, `description`, `metadata`) that `wanted` names; leave the rest.

    Another name is an entry of the audit chain. Raises `NotFound` when there is no such agent, and
    `PinnedKey` when the caller is pinned: the agent's other principals would see the change.
    """
    caller.require_no_pin()
    agent = find(session, caller, agent_id, lock=True)
    name, columns = agent.name, dict(wanted)
    if "metadata" in columns:
        columns["metadata_json"] = fields.json_text(columns.pop("metadata"))
    for column, value in columns.items():
        setattr(agent, column, value)
    if session.is_modified(agent):
        agent.updated_at = func.clock_timestamp()
        session.flush()
    if agent.name != name:
        _note_rename(session, caller, agent, name)
    return agent


def _note_rename(session: Session, caller: Caller, agent: Agent, old: str) -> None:
    """Keep an agent's old name, and append the change to the audit chain."""
    cursor(session).execute(_KEEP_NAME, (agent.tenant_id, agent.id, old))
    target = ("agent", ids.text("agt", agent.id))
    details = {"name": {"old": old, "new": agent.name}}
    chain.append_by(session, caller, "agent.update", target=target, details=details)


def name_at(tx: Tx, tenant_id: UUID, agent_id: UUID, moment: datetime) -> str:
    """Return the name that an agent had at a moment; it has to exist."""
    row = cursor(tx).execute(_NAME_AT, (moment, tenant_id, agent_id)).fetchone()
    if row is None:
        raise LookupError(f"There is no agent {ids.text('agt', agent_id)}.")
    return str(row[0])


def former_names(tx: Tx, tenant_id: UUID, agent_id: UUID) -> list[tuple[str, datetime]]:
    """Return the newest names that an agent had before its present one, each until when."""
    return cursor(tx).execute(_FORMER_NAMES, (tenant_id, agent_id)).fetchall()


def _visible(caller: Caller) -> list[ColumnElement[bool]]:
    conditions = [Agent.tenant_id == caller.tenant_id]
    if caller.pin is not None:
        conditions.append(Agent.id == caller.pin.agent_id)
    return conditions
