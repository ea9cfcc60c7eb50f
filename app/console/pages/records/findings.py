"""Findings: the list with its filters in the URL, and the page of a finding."""

from typing import Any

from werkzeug.wrappers import Response

from app import ids
from app.api.http.services import caller, transaction
from app.api.resources.findings import FindingArgs, fetch
from app.console.frame import forms, lists, rendering
from app.console.frame.access import Pages
from app.console.frame.lists import Listed
from app.console.pages.deliveries.deliveries import known_webhooks, webhook_names
from app.core import findings
from app.core.delivery.history import delivery_list, event_history
from app.core.delivery.history.delivery_list import Filters
from app.core.findings import FindingSchema, Severity, Source
from app.core.records import activity

blp = Pages("findings", "/findings", whole_tenant=False)

lists.serve(
    blp,
    Listed(
        "findings",
        fetch,
        findings.represent,
        FindingArgs,
        FindingSchema,
        beside=lambda session, _, found: {
            "occurred": activity.occurred(session, caller(), found["data"])
        },
        shown={
            "severities": forms.choices(reversed(Severity)),
            "sources": forms.choices(Source),
        },
        does=("findings list", "GET /v1/findings"),
    ),
)


@blp.page("/<finding_id>")
def show(finding_id: str) -> Response:
    """Show one finding, and what became of its event at every webhook."""
    event: dict[str, Any] | None = None
    webhooks: dict[str, dict[str, Any]] = {}
    with transaction(snapshot=True) as session:
        finding = findings.find(session, caller(), ids.parse("fnd", finding_id))
        found = findings.represent(finding)
        names = rendering.names_in(session, found)
        occurred = activity.occurred(session, caller(), [found])
        if caller().pin is None:
            webhooks = known_webhooks(session)
            wanted = Filters(finding_id=finding.id)
            for event_id in delivery_list.events_of(session, caller().tenant_id, wanted) or ():
                told = event_history.find(session, caller(), event_id)
                event = event_history.describe(session, told)
    return rendering.page(
        "findings/one",
        finding=found,
        event=event,
        names=names,
        occurred=occurred,
        webhooks=webhook_names(webhooks),
        may_see_rules=caller().pin is None,
        does=(f"findings show {finding_id}", f"GET /v1/findings/{finding_id}"),
    )
