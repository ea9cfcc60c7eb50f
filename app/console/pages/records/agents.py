"""Agents: the list, and the page of an agent with what it did."""

from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import filters
from app.api.http.services import caller, transaction
from app.api.resources.agents import AgentArgs
from app.console.frame import forms, lists, rendering, zone
from app.console.frame.access import Pages
from app.console.frame.lists import Listed
from app.console.pages.records.sessions import listed
from app.core import agents, feeds, sessions
from app.core.agents import AgentSchema
from app.core.delivery import hours
from app.core.delivery.hours import Step
from app.core.keys import keys
from app.core.records import activity, holds, records
from app.database import database_now
from app.models import Record

blp = Pages("agents", "/agents", whole_tenant=False)

lists.serve(
    blp,
    Listed(
        "agents",
        lambda session, args, *where: agents.rows(session, caller(), filters(args), *where),
        agents.represent,
        AgentArgs,
        AgentSchema,
        named=lambda _: (),
        beside=lambda session, _, found: {
            "did": activity.of(session, caller(), "agt", found["data"])
        },
        does=("agents list", "GET /v1/agents"),
    ),
)

_NEWEST, _MOST_KEYS = 20, 50


@blp.page("/<agent_id>")
def show(agent_id: str) -> Response:
    """Show one agent, its newest sessions and records."""
    with transaction() as session:
        found = agents.find(session, caller(), ids.parse("agt", agent_id))
        agent, of_agent = agents.represent(found), {"agent_id": found.id}
        latest = [
            listed(each) for each in sessions.rows(session, caller(), of_agent, None, _NEWEST)
        ]
        rows = session.scalars(feeds.newest(Record, caller(), of_agent, None, _NEWEST)).all()
        newest = records.represent(session, rows)
        did = activity.of(session, caller(), "agt", [agent])
        did |= activity.of(session, caller(), "ses", latest)
        days = hours.span(database_now(session), None, None, Step.DAY, zone.chosen())
        by_day = activity.by_day(session, caller(), found.id, days.starts, days.until)
        pinned = [
            keys.represent(each) for each in keys.pinned_to(session, caller(), found.id, _MOST_KEYS)
        ]
        former = agents.former_names(session, found.tenant_id, found.id)
        names = rendering.names_in(session, *latest, *newest)
        held = holds.standing_on(session, caller(), _NEWEST, found.id)
    return rendering.page(
        "agents/one",
        agent=agent,
        held=held,
        blank=forms.blank(),
        former=former,
        by_day=by_day,
        pinned=pinned,
        did=did,
        latest=latest,
        newest=newest,
        names=names,
        does=(f"agents show {agent_id}", f"GET /v1/agents/{agent_id}"),
    )
