"""Who is told of troubles by mail, and the mails that were sent."""

from typing import Any

from flask import Blueprint, url_for
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response

from app.api.http.paging import PageArgs, page_of
from app.api.http.services import caller, transaction
from app.api.resources.tenant import AlertsChangeSchema
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.core.callers import Role
from app.core.digests import alerts
from app.core.digests.alerts import Policy
from app.core.digests.troubles import Kind
from app.errors import Invalid

blp = Blueprint("alerts", __name__, url_prefix="/alerts")

_KINDS = {
    Kind.WEBHOOK_FAILING: "a webhook fails for five minutes",
    Kind.WEBHOOK_REFUSING: "a webhook's receiver refuses what is sent",
    Kind.WEBHOOK_DISABLED: "a webhook is disabled by the service",
    Kind.RULE_FAILING: "a rule has errors",
    Kind.AUDIT_CHAIN_BROKEN: "the audit chain is broken",
    Kind.HISTORY_ROLLED_BACK: "the database lost a part of its history",
}


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """Show who is told of what, and the mails, newest first."""
    return _page(forms.blank())


@blp.post("")
@signed_in(Role.ADMIN, whole_tenant=True)
def change() -> Response:
    """Set who is told of what; an address a line."""
    typed = forms.sent()
    lines = [line.strip() for line in typed.value("emails").splitlines() if line.strip()]
    fields = MultiDict(typed.typed)
    fields.setlist("emails", lines)
    try:
        asked = (
            Input(fields).load(AlertsChangeSchema) if lines else {"emails": [], "kinds": [*Kind]}
        )
        wanted = Policy(asked["emails"], asked["kinds"])
        forms.once(lambda session: alerts.represent(alerts.change(session, caller(), wanted)))
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    count = len(lines)
    many = "1 address is" if count == 1 else f"{count} addresses are"
    return rendering.done(url_for(".index"), f"{many} told of troubles." if count else "Nobody is.")


def _page(typed: Input, status: int = 200) -> Response:
    asked = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    with transaction() as session:
        kept = alerts.represent(alerts.read(session, caller().tenant_id))
        try:
            found = page_of(
                asked.load(PageArgs),
                lambda *where: alerts.mails(session, caller().tenant_id, *where),
                alerts.represent_mail,
            )
        except Invalid as wrong:
            typed = typed.refused(wrong)
    return rendering.page(
        "alerts/index",
        status,
        typed=typed,
        kept=kept,
        found=found,
        kinds=[(kind.value, said) for kind, said in _KINDS.items()],
        does=(None, "PUT /v1/tenant/alerts"),
    )
