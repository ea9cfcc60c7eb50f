"""The front door: traces that exporters sent, and what became of each."""

from typing import Any

from flask import Blueprint
from werkzeug.wrappers import Response

from app.api.http.paging import filters, page_of
from app.api.http.services import caller, transaction
from app.api.resources.traces import TraceArgs
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.core.callers import Role
from app.core.traces import traces
from app.core.traces.traces import TraceStatus
from app.errors import Invalid

blp = Blueprint("traces", __name__, url_prefix="/traces")

# A trace of an agent that ran for days may have become thousands of records.
_MOST_RECORDS = 20


@blp.get("")
@signed_in(Role.READ)
def index() -> Response:
    """List traces, those that came last first, as the URL filters them."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    with transaction() as session:
        counts = traces.counts(session, caller())
        try:
            args = typed.load(TraceArgs)
            found = page_of(
                args,
                lambda *where: traces.rows(session, caller(), *where, **filters(args)),
                traces.represent,
            )
        except Invalid as wrong:
            typed = typed.refused(wrong)
    return rendering.page(
        "traces/list",
        typed=typed,
        found=found,
        counts=counts,
        most_records=_MOST_RECORDS,
        statuses=[each.value for each in TraceStatus],
        does=("traces list", "GET /v1/traces"),
    )
