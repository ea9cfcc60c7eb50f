"""Mail: the digests, the status of each, and when the next is due."""

from typing import Any

from flask import Blueprint
from werkzeug.wrappers import Response

from app.api.http.access.auth import caller
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import services
from app.api.http.transactions import transaction
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.core.callers import Role
from app.core.digests import history
from app.errors import Invalid

blp = Blueprint("mail", __name__, url_prefix="/mail")


@blp.get("")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """List digests, newest first."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    with transaction() as session:
        settle = services().settings.digest_settle
        coming = history.next_digest(session, caller().tenant_id, settle)
        try:
            found = page_of(
                typed.load(PageArgs),
                lambda before, limit: history.rows(session, caller().tenant_id, before, limit),
                history.represent,
            )
        except Invalid as wrong:
            typed = typed.refused(wrong)
    return rendering.page(
        "settings/mail",
        typed=typed,
        found=found,
        coming=history.represent_next(coming),
        does=(None, "GET /v1/digests"),
    )
