"""Exports of a record's bundle, streamed: W3C PROV and OpenTelemetry."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import reduce
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from flask import Response, request

from app import evidence
from app.api.http.requests import large_bodies
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import IF_NONE_MATCH, is_current, not_modified
from app.api.http.services import services
from app.api.resources.records import in_flight
from app.api.resources.records.bundle_access import ShareTokenArgs, admitted, bundle_content
from app.core import agents
from app.core.records import contents
from app.evidence import bundle, otlp, prov
from app.evidence.bundle import Bundle
from app.models import Record
from app.settings import VERSION

blp = Blueprint(
    "exports",
    __name__,
    url_prefix="/v1/records/<record_id>",
    description="A record's bundle in other formats: W3C PROV and OpenTelemetry.",
)

MEDIA_TYPE = "application/json"

_View: TypeAlias = Callable[..., Response]

# A hash of the exporters' code: two builds may have the same version.
_WRITERS = sha256(
    b"\0".join(
        [
            VERSION.encode(),
            *(file.read_bytes() for file in sorted(Path(evidence.__file__).parent.glob("*.py"))),
        ]
    )
).hexdigest()


def _export(path: str, endpoint: str, *, public: bool) -> Callable[[_View], _View]:
    """Declare a GET route for one export format."""
    decorators = (
        blp.route(path, methods=["GET"], endpoint=endpoint),
        bundle_content(public=public),
        blp.arguments(ShareTokenArgs, location="query"),
        blp.response(200, {"type": "object"}),
        blp.alt_response(304, description="The caller has this version."),
        blp.alt_response(409, "CONFLICT"),
        blp.alt_response(410, "GONE"),
        blp.alt_response(412, "PRECONDITION_FAILED"),
        blp.alt_response(503, "SERVICE_UNAVAILABLE"),
        blp.doc(parameters=[IF_NONE_MATCH]),
    )
    return lambda view: reduce(lambda made, decorate: decorate(made), reversed(decorators), view)


@_export("/prov.json", "prov", public=True)
def read_prov(args: dict[str, Any], record_id: str) -> Response:
    """Read the record as W3C PROV-JSON"""
    return export("prov.json")


@_export("/otlp-logs.json", "otlp_logs", public=False)
def read_logs(args: dict[str, Any], record_id: str) -> Response:
    """Read what happened as OpenTelemetry logs

    OTLP/JSON, `LogsData`: a log record for the record, one for each event of its steps and one for
    each step that failed, all with a body in words and a severity. Needs a key of the tenant or a
    share link, regardless of `bundle_visibility`.
    """
    return export("otlp-logs.json")


@_export("/otlp-traces.json", "otlp_traces", public=False)
def read_traces(args: dict[str, Any], record_id: str) -> Response:
    """Read the record and its steps as OpenTelemetry spans

    OTLP/JSON, `TracesData`. Needs a key of the tenant or a share link, regardless of
    `bundle_visibility`.
    """
    return export("otlp-traces.json")


def _write_prov(record: Record, read: Bundle, agent_name: str) -> Iterator[bytes]:
    digest, base_url = record.bundle_sha256.hex(), services().settings.base_url
    return prov.write(read, sha256=digest, base_url=base_url, agent_name=agent_name)


def _write_logs(_: Record, read: Bundle, agent_name: str) -> Iterator[bytes]:
    return otlp.write_logs(read, version=VERSION, agent_name=agent_name)


def _write_traces(_: Record, read: Bundle, agent_name: str) -> Iterator[bytes]:
    return otlp.write_traces(read, version=VERSION, agent_name=agent_name)


_Write: TypeAlias = Callable[[Record, Bundle, str], Iterator[bytes]]
FORMATS: Mapping[str, _Write] = {
    "prov.json": _write_prov,
    "otlp-logs.json": _write_logs,
    "otlp-traces.json": _write_traces,
}


def export(name: str) -> Response:
    """Answer the admitted record in one of `FORMATS`, from the cache if it was rendered lately.

    The ETag is computed from the bundle, the format, BASE_URL, the name that the agent had when the
    record was made, and the exporters' code, so it is known without rendering.
    """
    with admitted() as (session, record):
        contents.require_kept(session, record)
        agent_name = agents.name_at(session, record.tenant_id, record.agent_id, record.created_at)
    etag = _etag(record, name, agent_name)
    if is_current(etag):
        return not_modified(etag)
    # An iterator, so that werkzeug sets no Content-Length: the length is not known.
    answered = Response(iter(()), content_type=MEDIA_TYPE)
    if request.method != "HEAD":
        _fill(answered, etag, record, lambda read: FORMATS[name](record, read, agent_name))
    answered.set_etag(etag)
    return answered


def _fill(
    answered: Response,
    etag: str,
    record: Record,
    write: Callable[[Bundle], Iterator[bytes]],
) -> None:
    """Set a response's body; an export too large for the cache is rendered while it is sent."""
    renderings = services().renderings
    kept = renderings.get(etag)
    if kept is not None:
        answered.response = kept
        return
    with ExitStack() as held, large_bodies.room_for(record.bundle_size, record.tenant_id):
        # Another request may have rendered it while this one waited (single flight).
        kept = renderings.get(etag)
        if kept is not None:
            answered.response = kept
            return
        held.enter_context(in_flight.share(record.bundle_size))
        with admitted() as (session, _):
            raw = contents.read(session, services().settings.master_keys, record)
        answered.response, whole = renderings.made(etag, write(bundle.read(raw)))
        if not whole:
            answered.call_on_close(held.pop_all().close)


def _etag(record: Record, name: str, agent_name: str) -> str:
    of = (record.bundle_sha256.hex(), name, _WRITERS, services().settings.base_url, agent_name)
    return sha256("\n".join(of).encode()).hexdigest()
