"""Agents over HTTP."""

from typing import Any

from flask import Response

from app import ids
from app.api.http.access.auth import caller, requires
from app.api.http.idempotency import once
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import answer
from app.api.http.transactions import transaction
from app.core import agents
from app.core.agents import MAX_METADATA, METADATA, NAME, AgentSchema
from app.core.callers import Role
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint(
    "agents", __name__, url_prefix="/v1/agents", description="The AI agents that act for people."
)


class AgentChangeSchema(Schema):
    """The fields to change; those not sent stay, and null clears."""

    name = fields.Text(200, metadata=NAME)
    description = fields.Text(2000, allow_none=True)
    metadata = fields.JsonObject(MAX_METADATA, allow_none=True, metadata=METADATA)


class NewAgentSchema(AgentChangeSchema):
    """An agent to create."""

    name = fields.Text(200, required=True, metadata=NAME)


AgentPageSchema = page_schema(AgentSchema)


@blp.route("", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.arguments(NewAgentSchema)
@blp.response(201, AgentSchema)
def create(body: dict[str, Any]) -> Response:
    """Create an agent.

    A new agent belongs to the whole tenant, so a pinned key cannot create one.
    """
    with transaction() as session:
        return once(
            session, 201, lambda: agents.represent(agents.create(session, caller(), **body))
        )


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ)
@blp.arguments(PageArgs, location="query")
@blp.response(200, AgentPageSchema)
def list_agents(args: dict[str, Any]) -> Response:
    """List agents, newest first.

    A pinned key sees its own agent. A page may hold fewer agents than `limit` although more follow:
    continue while there is a `next_cursor`.
    """
    with transaction() as session:
        return page(args, lambda *where: agents.rows(session, caller(), *where), agents.represent)


@blp.route("/<agent_id>", methods=["GET"])
@requires(Role.READ)
@blp.response(200, AgentSchema)
def read(agent_id: str) -> Response:
    """Read an agent."""
    with transaction() as session:
        found = agents.find(session, caller(), ids.parse("agt", agent_id))
        return answer(agents.represent(found))


@blp.route("/<agent_id>", methods=["PATCH"])
@requires(Role.WRITE, whole_tenant=True)
@blp.arguments(AgentChangeSchema)
@blp.response(200, AgentSchema)
def change(body: dict[str, Any], agent_id: str) -> Response:
    """Change an agent.

    Fields not sent stay; null clears `description` and `metadata`. An agent belongs to the whole
    tenant, so a pinned key cannot change it.
    """
    with transaction() as session:
        changed = agents.change(session, caller(), ids.parse("agt", agent_id), body)
        return answer(agents.represent(changed))
