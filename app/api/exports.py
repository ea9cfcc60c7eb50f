"""A record's bundle in other people's formats, streamed: W3C PROV and OpenTelemetry."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

from flask import Response, request

from app.api import heavy
from app.api.bundle_access import ShareTokenArgs, admitted, bundle_content
from app.api.conditional import IF_NONE_MATCH, is_current, not_modified
from app.api.parsing import Blueprint
from app.api.services import services
from app.core.record import contents
from app.evidence import bundle, otlp, prov
from app.evidence.bundle import Bundle
from app.models import Record
from app.settings import VERSION

blp = Blueprint(
    "exports",
    __name__,
    url_prefix="/v1/records/<record_id>",
    description="What is in a record's bundle, for other programs: W3C PROV and OpenTelemetry.",
)

MEDIA_TYPE = "application/json"


@blp.route("/prov.json", methods=["GET"], endpoint="prov")
@bundle_content(public=True)
@blp.arguments(ShareTokenArgs, location="query")
@blp.response(200, {"type": "object"})
@blp.alt_response(304, description="The caller has this version.")
@blp.alt_response(410, "GONE")
@blp.alt_response(412, "PRECONDITION_FAILED")
@blp.doc(parameters=[IF_NONE_MATCH])
def read_prov(args: dict[str, Any], record_id: str) -> Response:
    """Read the record as W3C PROV-JSON"""
    base_url = services().settings.base_url
    return _made_from_bundle(
        lambda record, read: prov.write(read, sha256=record.bundle_sha256.hex(), base_url=base_url)
    )


@blp.route("/otlp-logs.json", methods=["GET"], endpoint="otlp_logs")
@bundle_content(public=False)
@blp.arguments(ShareTokenArgs, location="query")
@blp.response(200, {"type": "object"})
@blp.alt_response(304, description="The caller has this version.")
@blp.alt_response(410, "GONE")
@blp.alt_response(412, "PRECONDITION_FAILED")
@blp.doc(parameters=[IF_NONE_MATCH])
def read_logs(args: dict[str, Any], record_id: str) -> Response:
    """Read what happened during the steps, as OpenTelemetry logs

    OTLP/JSON, `LogsData`. Needs a key of the tenant or a share link, whatever
    `bundle_visibility` says.
    """
    return _made_from_bundle(lambda _, read: otlp.write_logs(read, version=VERSION))


@blp.route("/otlp-traces.json", methods=["GET"], endpoint="otlp_traces")
@bundle_content(public=False)
@blp.arguments(ShareTokenArgs, location="query")
@blp.response(200, {"type": "object"})
@blp.alt_response(304, description="The caller has this version.")
@blp.alt_response(410, "GONE")
@blp.alt_response(412, "PRECONDITION_FAILED")
@blp.doc(parameters=[IF_NONE_MATCH])
def read_traces(args: dict[str, Any], record_id: str) -> Response:
    """Read the record and its steps as OpenTelemetry spans

    OTLP/JSON, `TracesData`. Needs a key of the tenant or a share link, whatever
    `bundle_visibility` says.
    """
    return _made_from_bundle(lambda _, read: otlp.write_traces(read, version=VERSION))


def _made_from_bundle(write: Callable[[Record, Bundle], Iterator[bytes]]) -> Response:
    """Answer what `write` makes of the bundle, streamed.

    It depends on the bundle, this route, this release and where the service is: so much of an ETag
    is known without making anything. It is weak, since two builds may call themselves one release.
    """
    with admitted() as (session, record):
        contents.require_kept(session, record)
        etag = _etag(record)
        if is_current(etag, weak=True):
            return not_modified(etag, weak=True)
        asked_for = request.method != "HEAD"
        raw = contents.read(session, services().settings.master_keys, record) if asked_for else b""
    # Of a length that is not known nothing is said: an iterator has none.
    with heavy.room_for(len(raw)):
        body = write(record, bundle.read(raw)) if asked_for else iter(())
    answered = Response(body, content_type=MEDIA_TYPE)
    answered.set_etag(etag, weak=True)
    return answered


def _etag(record: Record) -> str:
    of = (record.bundle_sha256.hex(), request.endpoint, VERSION, services().settings.base_url)
    return sha256("\n".join(map(str, of)).encode()).hexdigest()
