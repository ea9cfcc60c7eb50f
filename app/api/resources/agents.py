"""Agents over HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from flask import Response
from sqlalchemy.orm import Session

from app.api.http.answers import answer
from app.api.http.auth import READ, WRITE_TENANT
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, filters
from app.api.http.parsing import load
from app.api.http.routes import Routes
from app.api.http.services import caller, transaction
from app.core import agents
from app.core.agents import AgentSchema
from app.schemas import fields
from app.schemas.schema import Schema

blp = Routes(
    "agents", __name__, url_prefix="/v1/agents", description="The AI agents that act for people."
)


class NamedAgentSchema(Schema):
    """The fields to set on an agent; those not sent stay, and null clears."""

    name = AgentSchema.field("name")
    version = AgentSchema.field("version")
    description = AgentSchema.field("description")
    metadata = AgentSchema.field("metadata")


class AgentChangeSchema(NamedAgentSchema):
    """The fields to change; those not sent stay, and null clears."""

    external_id = fields.ExternalId(allow_none=True)


class NewAgentSchema(AgentChangeSchema):
    """An agent to create."""

    name = AgentSchema.field("name", required=True)


class ExternalIdSchema(Schema):
    """An external id as a path names it."""

    external_id = fields.ExternalId()


class AgentArgs(PageArgs):
    """Filters of the agents."""

    external_id = fields.ExternalId()
    name = fields.Text(200, description="Its whole name.")
    q = fields.Text(
        1000, description="Words or parts of them, all in its name and external id, in any case."
    )


@blp.serves("POST", WRITE_TENANT, AgentSchema, 201, takes=NewAgentSchema)
def create(body: dict[str, Any]) -> Response:
    """Create an agent.

    A new agent belongs to the whole tenant, so a pinned key cannot create one.
    """
    return once(201, lambda session: agents.represent(agents.create(session, caller(), **body)))


@blp.lists("", READ, AgentSchema, AgentArgs)
def list_agents(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """List agents, newest first.

    A pinned key sees its own agent. A page may hold fewer agents than `limit` (of a search, even
    none) although more follow: continue while there is a `next_cursor`.
    """
    return agents.rows(session, caller(), filters(args), *where)


@blp.serves(
    "PUT /by-external-id/<rest:external_id>", WRITE_TENANT, AgentSchema, takes=NamedAgentSchema
)
@blp.alt_response(201, schema=AgentSchema, description="It did not exist and was created.")
def put(body: dict[str, Any], external_id: str) -> Response:
    """Get or create an agent by its external id.

    Safe to repeat, and at once. Fields that are sent are set, as by PATCH; a body without fields
    only gets. Without `name` a new agent is named by its external id.
    """
    load(ExternalIdSchema(), {"external_id": external_id})
    with transaction() as session:
        found, is_new = agents.put(session, caller(), external_id, body)
        return answer(agents.represent(found), 201 if is_new else 200)


@blp.serves("GET /<agent_id>", READ, AgentSchema)
def read(agent_id: UUID | None) -> dict[str, Any]:
    """Read an agent."""
    with transaction() as session:
        return agents.represent(agents.find(session, caller(), agent_id))


@blp.serves("PATCH /<agent_id>", WRITE_TENANT, AgentSchema, takes=AgentChangeSchema)
def change(body: dict[str, Any], agent_id: UUID | None) -> dict[str, Any]:
    """Change an agent.

    Fields not sent stay; null clears `description` and `metadata`. An agent belongs to the whole
    tenant, so a pinned key cannot change it.
    """
    with transaction() as session:
        return agents.represent(agents.change(session, caller(), agent_id, body))
