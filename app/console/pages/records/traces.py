"""The front door: traces that exporters sent, and what became of each."""

from app.api.http.paging import filters
from app.api.http.services import caller
from app.api.resources.traces import TraceArgs
from app.console.frame import lists
from app.console.frame.access import Pages
from app.console.frame.lists import Listed
from app.core.traces import traces
from app.core.traces.traces import TraceStatus

blp = Pages("traces", "/traces", whole_tenant=False)

# A trace of an agent that ran for days may have become thousands of records.
_MOST_RECORDS = 20


lists.serve(
    blp,
    Listed(
        "traces",
        lambda session, args, *where: traces.rows(session, caller(), *where, **filters(args)),
        traces.represent,
        TraceArgs,
        named=lambda _: (),
        beside=lambda session, *_: {"counts": traces.counts(session, caller())},
        shown={
            "most_records": _MOST_RECORDS,
            "statuses": [each.value for each in TraceStatus],
        },
        does=("traces list", "GET /v1/traces"),
    ),
)
