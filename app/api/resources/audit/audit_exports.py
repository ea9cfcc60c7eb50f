"""Exports of the whole audit chain as NDJSON: an entry a line, then a trailer that completes it."""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from uuid import UUID

from flask import Response, request

from app import metrics
from app.api.http.access.auth import caller
from app.api.http.admission import truncated_stream
from app.api.http.requests import parsing
from app.api.http.requests.headers import request_id
from app.api.http.services import Services, services
from app.api.http.transactions import transaction
from app.core.callers import Caller
from app.core.verification import alerts, export
from app.database import Database
from app.errors import AuditChainBroken, FieldError, Invalid
from app.ledger.hash_chain import Head
from app.settings import Settings

NDJSON = "application/x-ndjson"

_WHOLE = (
    "Query parameter: an export is the whole chain; leave this out, or ask for application/json."
)


def is_asked_for() -> bool:
    """Return whether the request prefers the whole chain (NDJSON) to a page of it (JSON)."""
    return request.accept_mimetypes.best_match(["application/json", NDJSON]) == NDJSON


def answer() -> Response:
    """Answer the caller's whole chain, and append an entry that records the export.

    Raises `Invalid` for a query, and `AuditChainBroken` if the first part of the chain is broken.
    """
    if request.args:
        raise Invalid(*(FieldError(parsing.pointer(name), _WHOLE) for name in request.args))
    if request.method == "HEAD":
        # No entry is sent, so nothing was exported and the chain has no entry of it.
        return Response(content_type=NDJSON)
    # Its own entry is committed before the first byte leaves: no export without one.
    with transaction() as session:
        end = export.begin(session, caller())
    here = services()
    lines = _lines(here.database, caller(), end, here.settings)
    # Before the first byte leaves, what is wrong with the chain can still be answered as a problem.
    first = next(lines)
    whole = chain([first], lines)
    told = partial(_told, here, caller().tenant_id)
    return Response(truncated_stream(whole, request_id(), told), content_type=NDJSON)


def _lines(database: Database, reader: Caller, end: Head, settings: Settings) -> Iterator[bytes]:
    for after in range(0, end.seq, export.PART):
        with database.transaction(reader.tenant_id) as session:
            entries = export.part(session, reader, after, end)
        yield b"".join(map(export.line, entries))
    with database.transaction(reader.tenant_id, snapshot=True) as session:
        trailer = export.trailer(
            session,
            reader.tenant_id,
            end,
            settings.witness_policy,
            settings.master_keys,
            settings.tsa_ca_file,
        )
    yield trailer


def _told(here: Services, tenant_id: UUID, error: Exception) -> bool:
    """Count and record a broken chain that the export met; return whether the error was one."""
    if isinstance(error, AuditChainBroken):
        here.tally.add(metrics.CHAINS_BROKEN)
        alerts.report_break(here.database, tenant_id, error)
    return isinstance(error, AuditChainBroken)
