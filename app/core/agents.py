"""Agents: the AI agents that act for a tenant's people.

An agent belongs to the whole tenant: a pinned key sees its own agent, and cannot create or change.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import feeds, json_columns
from app.core.callers import Caller
from app.errors import NotFound
from app.models import Agent


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
        metadata_json=json_columns.to_text(metadata),
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

    Raises `NotFound` when there is no such agent, and `PinnedKey` when the caller is pinned: the
    agent's other principals would see the change.
    """
    caller.require_no_pin()
    agent = find(session, caller, agent_id, lock=True)
    columns = dict(wanted)
    if "metadata" in columns:
        columns["metadata_json"] = json_columns.to_text(columns.pop("metadata"))
    for name, value in columns.items():
        setattr(agent, name, value)
    if session.is_modified(agent):
        agent.updated_at = func.clock_timestamp()
        session.flush()
    return agent


def represent(agent: Agent) -> dict[str, Any]:
    """Return the agent's JSON representation, as GET returns it."""
    return {
        "id": ids.text("agt", agent.id),
        "name": agent.name,
        "description": agent.description,
        "metadata": json_columns.from_text(agent.metadata_json),
        "created_at": rfc3339(agent.created_at),
        "updated_at": rfc3339(agent.updated_at),
    }


def _visible(caller: Caller) -> list[ColumnElement[bool]]:
    conditions = [Agent.tenant_id == caller.tenant_id]
    if caller.pin is not None:
        conditions.append(Agent.id == caller.pin.agent_id)
    return conditions
