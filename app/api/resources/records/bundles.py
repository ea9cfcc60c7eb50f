"""A record's bundle over HTTP: the exact bytes that were signed."""

from contextlib import ExitStack
from typing import Any

from flask import Response

from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import IF_NONE_MATCH, IF_RANGE, RANGE, conditional
from app.api.http.services import services
from app.api.resources.records import in_flight
from app.api.resources.records.bundle_access import ShareTokenArgs, admitted, bundle_content
from app.core.records import contents
from app.evidence import bundle

blp = Blueprint(
    "bundles",
    __name__,
    url_prefix="/v1/records/<record_id>",
    description="The contents of a record's bundle. With `bundle_visibility: private` they need a "
    "key of the tenant or a share link of the record (`share_token`, `x-share-token`).",
)

MEDIA_TYPE = "application/json"


@blp.route("/bundle", methods=["GET"], endpoint="bundle")
@bundle_content(public=True)
@blp.arguments(ShareTokenArgs, location="query")
@blp.response(
    200,
    {"type": "object"},
    headers={
        "ETag": {"description": "The SHA-256 of the bytes, in hex.", "schema": {"type": "string"}},
        "x-service-bundle-signature": {
            "description": '`keyid="…", alg="ed25519", sig="<base64>"`, over exactly these bytes.',
            "schema": {"type": "string"},
        },
    },
)
@blp.alt_response(206, schema={"type": "string"}, description="The range that was asked for.")
@blp.alt_response(304, description="The caller has these bytes.")
@blp.alt_response(409, "CONFLICT")
@blp.alt_response(410, "GONE")
@blp.alt_response(412, "PRECONDITION_FAILED")
@blp.alt_response(416, "REQUESTED_RANGE_NOT_SATISFIABLE")
@blp.alt_response(503, "SERVICE_UNAVAILABLE")
@blp.doc(parameters=[IF_NONE_MATCH, RANGE, IF_RANGE])
def read_bundle(args: dict[str, Any], record_id: str) -> Response:
    """Read the exact bytes that were signed

    Their signature is in `x-service-bundle-signature`, their SHA-256 is the ETag. After expiry the
    answer is 410, with the SHA-256 and the log index that remain.
    """
    return exact_bytes()


def exact_bytes() -> Response:
    """Answer the signed bytes of the admitted record, with their signature."""
    master_keys = services().settings.master_keys
    with ExitStack() as held, admitted() as (session, record):
        contents.require_kept(session, record)

        def read(start: int, stop: int) -> bytes:
            held.enter_context(in_flight.share(record.bundle_size))
            return contents.read(session, master_keys, record)[start:stop]

        answered = conditional(record.bundle_sha256.hex(), record.bundle_size, read, MEDIA_TYPE)
        answered.call_on_close(held.pop_all().close)
    signed = bundle.signature_header(record.key_id, record.signature)
    answered.headers["x-service-bundle-signature"] = signed
    return answered
