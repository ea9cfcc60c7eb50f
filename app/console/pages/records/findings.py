"""Findings: the list with its filters in the URL, and the page of a finding."""

from datetime import datetime
from typing import Any

from flask import Blueprint
from werkzeug.wrappers import Response

from app import ids
from app.api.http.paging import page_of
from app.api.http.services import caller, transaction
from app.api.resources.findings import FindingArgs, fetch
from app.console.frame import downloads, forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.downloads import Listed
from app.console.pages.deliveries.deliveries import known_webhooks, webhook_names
from app.core import findings
from app.core.callers import Role
from app.core.delivery.history import delivery_list, event_history
from app.core.delivery.history.delivery_list import Filters
from app.core.findings import FindingSchema, Severity, Source
from app.core.records import activity

blp = Blueprint("findings", __name__, url_prefix="/findings")

downloads.offer(
    blp,
    Listed(
        "findings",
        "console.findings.index",
        FindingArgs,
        FindingSchema,
        fetch,
        lambda _, row: findings.represent(row),
    ),
)


@blp.get("")
@signed_in(Role.READ)
def index() -> Response:
    """List findings, newest first, as the URL filters them."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    names: dict[str, str] = {}
    occurred: dict[str, datetime] = {}
    with typed.refusing(), transaction() as session:
        args = typed.load(FindingArgs)
        found = page_of(
            args,
            lambda *where: fetch(session, args, *where),
            findings.represent,
        )
        names = rendering.names_in(session, *found["data"], typed.typed)
        occurred = activity.occurred(session, caller(), found["data"])
    return rendering.page(
        "findings/list",
        typed=typed,
        found=found,
        names=names,
        occurred=occurred,
        severities=[(each.value, each.value) for each in reversed(Severity)],
        sources=[(each.value, each.value) for each in Source],
        does=("findings list", "GET /v1/findings"),
    )


@blp.get("/<finding_id>")
@signed_in(Role.READ)
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
