"""The front door over HTTP: spans from exporters (OTLP/HTTP), and what became of their traces."""

from collections.abc import Mapping, Sequence
from typing import Any

from flask import Response, g, request
from sqlalchemy.orm import Session

from app.api.http import parsing, problems
from app.api.http.auth import READ, WRITE_UNCONFIRMED
from app.api.http.documentation import MEDIA_TYPE, takes_gzip
from app.api.http.paging import PageArgs, filters
from app.api.http.routes import Routes
from app.api.http.services import caller, services
from app.core.traces import staging, traces
from app.core.traces.staging import Sent
from app.core.traces.traces import TraceSchema, TraceStatus
from app.errors import BadRequest, UnsupportedMediaType
from app.evidence.spans import export
from app.evidence.spans.protobuf import Malformed
from app.schemas import fields

blp = Routes(
    "traces",
    __name__,
    url_prefix="/v1/traces",
    description="Spans of agents that speak OpenTelemetry, which become records.",
)

# google.rpc.Code of each status that this route answers.
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 413: 8, 415: 3, 422: 3, 429: 8, 500: 13, 503: 14}
_UNKNOWN = 2
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ANY_JSON = {"schema": {"type": "object"}}
_EITHER = {export.PROTOBUF: _BINARY, export.JSON_TYPE: _ANY_JSON}
_STATUS = {
    "type": "object",
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
    "required": ["code", "message"],
}
_REFUSED = {
    "description": "A `google.rpc.Status` in the request's encoding, or a problem.",
    "content": {
        export.PROTOBUF: _BINARY,
        export.JSON_TYPE: {"schema": _STATUS},
        MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}},
    },
}


class TraceArgs(PageArgs):
    """Query parameters of the list of traces."""

    status = fields.Choice(TraceStatus)


@blp.serves("POST", WRITE_UNCONFIRMED)
@blp.doc(
    requestBody={
        "required": False,
        "description": "An `ExportTraceServiceRequest`, at most 8 MiB when unpacked.",
        "content": _EITHER,
    },
    responses={
        200: {
            "description": "An `ExportTraceServiceResponse` in the request's encoding; its partial "
            "success counts spans that can never be taken.",
            "content": _EITHER,
        },
        **dict.fromkeys((400, 413, 415, 429, 503), _REFUSED),
    },
)
@takes_gzip
@parsing.takes_bytes
def create() -> Response:
    """Take spans from an exporter (OTLP/HTTP).

    Point `OTEL_EXPORTER_OTLP_ENDPOINT` at this service. Each span counts once, however often it is
    sent. Once a trace's root has ended, and nothing came for two seconds, its spans become a record
    for each local root. Errors are a `google.rpc.Status` in the request's encoding.
    """
    g.answers_status = True
    is_json = _is_json()
    here = services()
    refuse = staging.pin_check(here.database, caller())
    with parsing.room_to_read():
        try:
            found = export.read(parsing.body(), is_json=is_json, refuse=refuse)
        except Malformed as error:
            raise BadRequest(f"The body is no ExportTraceServiceRequest: {error}.") from None
    exporter = request.headers.get("User-Agent", "")[:200]
    here.staging.stage(Sent(caller(), exporter, found))
    rejected = len(found.rejected)
    message = f"{found.rejected[0].reason}" if rejected else ""
    return _answer(export.answer(rejected, message, is_json=is_json), 200, is_json=is_json)


def _is_json() -> bool:
    if request.mimetype not in (export.PROTOBUF, export.JSON_TYPE):
        raise UnsupportedMediaType(
            f"Send the spans as {export.PROTOBUF} or {export.JSON_TYPE}; "
            f"they came as {request.content_type or 'no type at all'}."
        )
    return request.mimetype == export.JSON_TYPE


def _answer(body: bytes, status: int, *, is_json: bool) -> Response:
    return Response(body, status, content_type=export.JSON_TYPE if is_json else export.PROTOBUF)


@blp.errorhandler(Exception)
def answer_error(error: Exception) -> Response:
    """Answer an exporter's error as a `google.rpc.Status`, another caller's as a problem.

    Who sends JSON is known as an exporter in the view: refusals before it are problems.
    """
    problem = problems.answer_error(error)
    if "answers_status" not in g and request.mimetype != export.PROTOBUF:
        return problem
    detail = str((problem.get_json(silent=True) or {}).get("detail", ""))
    is_json = request.mimetype != export.PROTOBUF
    code = _CODES.get(problem.status_code, _UNKNOWN)
    answered = _answer(
        export.status(code, detail, is_json=is_json), problem.status_code, is_json=is_json
    )
    for name, value in problem.headers:
        if name not in ("Content-Type", "Content-Length"):
            answered.headers[name] = value
    return answered


@blp.lists("", READ, TraceSchema, TraceArgs, represent=traces.represent)
def list_traces(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """List traces that exporters sent, and what became of them; the newest first."""
    return traces.rows(session, caller(), *where, **filters(args))
