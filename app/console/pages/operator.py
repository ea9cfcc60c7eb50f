"""The operator's view over tenants: figures, and nothing of content; suspend and resume."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec
from uuid import UUID

from flask import Blueprint, g, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from app import ids
from app.api.http import auth, rate_limit
from app.api.http.auth import Access
from app.api.http.services import services
from app.console.frame import access, browser, forms, rendering
from app.core import tenants
from app.core.health import tenant_figures
from app.core.health.tenant_figures import Figures, Sort
from app.core.keys.console_sessions import OperatorToken
from app.core.verification import alerts
from app.errors import Forbidden
from app.lib.canonical_json import MAX_INTEGER
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint("operator", __name__, url_prefix="/operator")

_MOST = 50
_P = ParamSpec("_P")


class TenantArgs(Schema):
    """How the list of tenants is sorted and filtered, and where its page begins."""

    sort = fields.Choice(Sort, load_default=Sort.WAITING)
    q = fields.Text(200)
    suspended = fields.Boolean(load_default=False)
    after = fields.Id("ten", load_default=None)
    below = fields.QueryInteger(0, MAX_INTEGER, load_default=0)


class SuspendSchema(Schema):
    """Why a tenant is suspended: for its audit chain."""

    reason = fields.Text(500)


def operator_only(view: Callable[_P, AnyResponse]) -> Callable[_P, AnyResponse]:
    """Let only an operator's session reach the view; forms are from here and from the session."""

    @wraps(view)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> AnyResponse:
        rate_limit.count_address()
        token = OperatorToken(request.cookies.get(browser.cookie_name("operator"), ""))
        with services().database.statement() as tx:
            found = token.find(tx)
        if found is None:
            return redirect(url_for("console.sign_in.ask"), 303)
        g.operator, g.operator_until = found
        g.form_token = token.form_token
        if request.method == "POST" and not access.is_own_form():
            raise Forbidden("This form is of another session. Reload its page.")
        return view(*args, **kwargs)

    return auth.mark(checked, Access(None, operator=True))


@blp.get("")
@operator_only
def index() -> AnyResponse:
    """List tenants by their figures."""
    typed = forms.query()
    args = typed.load_filters(TenantArgs)
    found: Sequence[Figures] = ()
    with services().database.across_tenants() as session:
        computed_at = tenant_figures.computed_at(session)
        if "q" in args:
            found = tenant_figures.find(session, args["q"], _MOST)
        elif not typed.errors:
            after = args["after"] and (args["below"], args["after"])
            found = tenant_figures.rows(
                session, args["sort"], after, _MOST + 1, suspended=args["suspended"]
            )
    rows = [{"id": ids.text("ten", each.tenant_id), **vars(each)} for each in found[:_MOST]]
    return rendering.page(
        "operator/list",
        typed=typed,
        found=rows,
        last=rows[-1] if len(found) > _MOST else None,
        sort=str(args["sort"]),
        computed_at=computed_at,
        operator=g.operator,
        until=g.operator_until,
    )


@blp.post("/<tenant_id>/<any(suspend,resume):verb>")
@operator_only
def change(tenant_id: str, verb: str) -> AnyResponse:
    """Suspend a tenant, whose keys are refused then and deliveries and mails wait, or resume it."""
    tenant, here = ids.parse("ten", tenant_id) or UUID(int=0), services()
    reason = forms.sent().load(SuspendSchema).get("reason")
    with here.database.transaction(tenant) as session:
        if verb == "suspend":
            done = tenants.suspend(session, tenant, reason, g.operator)
            said = "is suspended" if done.result else "was suspended before"
        else:
            done = tenants.resume(session, tenant, g.operator)
            said = "goes on" if done.result else "was not suspended"
    if done.untold is not None:
        alerts.report_break(here.database, tenant, done.untold)
    return rendering.done(".index", f"{tenant_id} {said}.", q=tenant_id)


@blp.post("/sign-out")
@operator_only
def sign_out() -> AnyResponse:
    """End the operator's session."""
    token = OperatorToken(request.cookies[browser.cookie_name("operator")])
    with services().database.across_tenants() as session:
        token.end(session)
    answered = redirect(url_for("console.sign_in.ask"), 303)
    browser.set_cookie(answered, "operator", "", 0)
    return answered
