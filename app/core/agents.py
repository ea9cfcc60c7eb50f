"""Agents: the AI agents that act for a tenant's people.

An agent belongs to the whole tenant: a pinned key sees its own agent, and cannot create or change.
Proofs have the name that an agent had when the record was made, so a rename is audited and the old
name kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import ids
from app.core import feeds
from app.core.audit import chain
from app.core.callers import Caller
from app.database import Tx, cursor
from app.errors import ExternalIdInUse
from app.models import Agent
from app.schemas import fields
from app.schemas.schema import AnswerSchema

# In one order, so that two transactions which create the same agents do not deadlock.
_CREATE = """
INSERT INTO agents (tenant_id, id, external_id, name, version)
SELECT %s, id, external_id, name, version
  FROM unnest(%b::uuid[], %s::text[], %s::text[], %s::text[])
       AS new (id, external_id, name, version)
 ORDER BY external_id
    ON CONFLICT (tenant_id, external_id) WHERE external_id IS NOT NULL DO NOTHING
"""
_UPGRADE = """
UPDATE agents AS a SET version = new.version, updated_at = clock_timestamp()
  FROM unnest(%s::text[], %s::text[]) AS new (external_id, version)
 WHERE a.tenant_id = %s AND a.external_id = new.external_id
   AND a.version IS DISTINCT FROM new.version
"""
_NAMED = """
SELECT external_id, id, name, version FROM agents WHERE tenant_id = %s AND external_id = ANY (%s)
"""
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
    external_id = fields.ExternalId(allow_none=True)
    name = fields.Text(200, example="invoice-assistant")
    version = fields.Text(200, allow_none=True, example="2.4.1")
    description = fields.Text(2000, allow_none=True)
    metadata = fields.JsonObject(
        64 * 1024,
        stored_in="metadata_json",
        allow_none=True,
        description="Any JSON object, at most 64 KiB.",
        example={"model": "m-4", "team": "finance"},
    )
    created_at = fields.Time()
    updated_at = fields.Time()


represent = AgentSchema.of


class NewAgent(NamedTuple):
    """An agent by its owner's id: its name if it has yet to be created, and its version."""

    external_id: str
    name: str
    version: str | None = None


class KnownAgent(NamedTuple):
    """An agent as `get_or_create` found or created it."""

    id: UUID
    name: str
    version: str | None


def create(
    session: Session,
    caller: Caller,
    *,
    name: str,
    external_id: str | None = None,
    version: str | None = None,
    description: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> Agent:
    """Create an agent; names need not be unique.

    Raises `PinnedKey` when the caller is pinned: a new agent is outside its pin. Raises
    `ExternalIdInUse` when another agent has the external id.
    """
    caller.require_no_pin()
    created = insert(Agent).values(
        tenant_id=caller.tenant_id,
        id=ids.new(),
        external_id=external_id,
        name=name,
        version=version,
        description=description,
        metadata_json=fields.json_text(metadata),
    )
    agent = session.scalars(created.on_conflict_do_nothing().returning(Agent)).one_or_none()
    if agent is None:
        raise ExternalIdInUse("Another agent has this external_id.")
    return agent


def put(
    session: Session, caller: Caller, external_id: str, wanted: Mapping[str, Any]
) -> tuple[Agent, bool]:
    """Get or create the agent with this external id, then set the fields that `wanted` names.

    Returns the agent, and whether it was created; without a name it is named by its external id.
    Raises `PinnedKey` when the caller is pinned.
    """
    caller.require_no_pin()
    same = select(Agent.id).where(
        Agent.tenant_id == caller.tenant_id, Agent.external_id == external_id
    )
    known = session.scalar(same)
    if known is None:
        try:
            named = {"name": external_id[:200], **wanted}
            return create(session, caller, external_id=external_id, **named), True
        except ExternalIdInUse:
            # It was created meanwhile, and the next statement sees it.
            known = session.scalar(same)
    if not wanted:
        return find(session, caller, known), False
    return change(session, caller, known, wanted), False


def get_or_create(tx: Tx, tenant_id: UUID, wanted: Iterable[NewAgent]) -> dict[str, KnownAgent]:
    """Return many agents by external id, those created that did not exist.

    An agent that exists keeps its name, for a rename is an act that the audit chain knows; another
    version is set. Concurrent calls agree on one agent for each external id. Call it once in a
    transaction: two that create in several calls may deadlock, and one is then rolled back.
    """
    new = {each.external_id: each for each in wanted}
    if not new:
        return {}
    rows = [(ids.new(), *each) for each in new.values()]
    cur = cursor(tx)
    cur.execute(_CREATE, (tenant_id, *map(list, zip(*rows, strict=True))))
    found = cur.execute(_NAMED, (tenant_id, list(new))).fetchall()
    agents = {external_id: KnownAgent(*row) for external_id, *row in found}
    newer = sorted(
        (external_id, each.version)
        for external_id, each in new.items()
        if each.version not in (None, agents[external_id].version)
    )
    if newer:
        cur.execute(_UPGRADE, (*map(list, zip(*newer, strict=True)), tenant_id))
        for external_id, version in newer:
            agents[external_id] = agents[external_id]._replace(version=version)
    return agents


def rows(
    session: Session, caller: Caller, filters: Mapping[str, str], before: UUID | None, limit: int
) -> Sequence[Agent]:
    """Return one page of the agents that the caller may see (`feeds.page`).

    The words of the filter `q` are those of name and external id.
    """
    text = Agent.name + " " + func.coalesce(Agent.external_id, "")
    return feeds.page(session, Agent, caller, filters, before, limit, text)


def find(session: Session, caller: Caller, agent_id: UUID | None, *, lock: bool = False) -> Agent:
    """Return one agent; raises `NotFound` if it does not exist or the caller may not see it."""
    missing = "There is no agent with this id."
    return feeds.find(session, Agent, caller, agent_id, missing, lock=lock)


def change(
    session: Session, caller: Caller, agent_id: UUID | None, wanted: Mapping[str, Any]
) -> Agent:
    """Set the fields that `wanted` names (as the agent's schema has them); leave the rest.

    Another name is an entry of the audit chain. Raises `NotFound` when there is no such agent,
    `PinnedKey` when the caller is pinned (the agent's other principals would see the change), and
    `ExternalIdInUse` when another agent has the external id.
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
        try:
            session.flush()
        except IntegrityError:
            raise ExternalIdInUse("Another agent has this external_id.") from None
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
