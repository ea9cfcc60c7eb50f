"""Exports of an audit chain as NDJSON: an entry a line, then a trailer that completes it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any
from uuid import UUID

from flask import Response, request

from app import metrics
from app.api.http import parsing
from app.api.http.admission import truncated_stream
from app.api.http.services import Services, caller, request_id, services, transaction
from app.core.audit import archive
from app.core.callers import Caller
from app.core.verification import alerts, export
from app.core.verification.export import Layout, Range
from app.errors import AuditChainBroken, FieldError, Invalid
from app.models import AuditEntry

NDJSON = "application/x-ndjson"

_WHOLE = (
    "Query parameter: an export is the chain between two moments; leave this out, or ask for "
    "application/json."
)
_PARAMETERS = frozenset({"since", "until", "layout"})


def is_asked_for() -> bool:
    """Return whether the request prefers the chain (NDJSON) to a page of it (JSON)."""
    return request.accept_mimetypes.best_match(["application/json", NDJSON]) == NDJSON


def answer(args: Mapping[str, Any] = MappingProxyType({})) -> Response:
    """Answer the caller's chain, from `since` to `until`, and append an entry that records that.

    Raises `Invalid` for another parameter, and `AuditChainBroken` if the first part is broken.
    """
    wrong = sorted(request.args.keys() - _PARAMETERS)
    if wrong:
        raise Invalid(*(FieldError(parsing.pointer(name), _WHOLE) for name in wrong))
    asked = {name: args[name] for name in _PARAMETERS & args.keys()}
    if "since" in asked and "until" in asked and asked["since"] >= asked["until"]:
        text = "Query parameter: send a moment after since."
        raise Invalid(FieldError("/until", text))
    layout = Layout(asked.get("layout", Layout.CHAIN))
    if request.method == "HEAD":
        # No entry is sent, so nothing was exported and the chain has no entry of it.
        return Response(content_type=NDJSON)
    # Its own entry is committed before the first byte leaves: no export without one.
    with transaction() as session:
        told = export.begin(session, caller(), **asked)
    here = services()
    lines = _lines(here, caller(), told, layout)
    # Before the first byte leaves, what is wrong with the chain can still be answered as a problem.
    first = next(lines)
    whole = chain([first], lines)
    report = partial(_told, here, caller().tenant_id)
    return Response(truncated_stream(whole, request_id(), report), content_type=NDJSON)


def _lines(here: Services, reader: Caller, told: Range, layout: Layout) -> Iterator[bytes]:
    last = told.last.seq

    def read(after: int) -> Sequence[AuditEntry]:
        with here.database.transaction(reader.tenant_id) as session:
            found = export.part(session, reader, after, last)
            keys = here.settings.master_keys
            return archive.filled(session, keys, reader.tenant_id, found)

    for after in range(told.after.seq, last, export.PART):
        entries = here.fetching(partial(read, after))
        yield b"".join(export.line(entry, layout) for entry in entries)
    with here.database.transaction(reader.tenant_id, snapshot=True) as session:
        trailer = export.trailer(session, reader.tenant_id, told, layout)
    yield trailer


def _told(here: Services, tenant_id: UUID, error: Exception) -> bool:
    """Count and record a broken chain that the export met; return whether the error was one."""
    if isinstance(error, AuditChainBroken):
        here.tally.add(metrics.CHAINS_BROKEN)
        alerts.report_break(here.database, tenant_id, error)
    return isinstance(error, AuditChainBroken)
