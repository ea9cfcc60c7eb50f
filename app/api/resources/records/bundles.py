"""A record's bundle over HTTP: the signed bytes, W3C PROV, OpenTelemetry, its inclusion proof."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

from flask import Response, request

from app import evidence
from app.api.http import large_work
from app.api.http.answers import (
    conditional,
    conditional_bytes,
    is_current,
    not_modified,
)
from app.api.http.documentation import IF_NONE_MATCH, header_of
from app.api.http.routes import Routes
from app.api.http.services import reads_objects, services
from app.api.resources.log import LogProofSchema
from app.api.resources.records.bundle_access import (
    ShareTokenArgs,
    admitted,
    bundle_content,
    note_read,
    share_of_memory,
)
from app.core import agents
from app.core.anchoring import quorum
from app.core.log import proofs
from app.core.records import bundles, records
from app.evidence import bundle, otlp, prov
from app.evidence.bundle import Bundle
from app.models import Record
from app.settings import VERSION

blp = Routes(
    "bundles",
    __name__,
    url_prefix="/v1/records/<record_id>",
    description="A record's bundle: the signed bytes, W3C PROV, OpenTelemetry, and its inclusion "
    "proof in the log. With `bundle_visibility: private` they need a key of the tenant or a share "
    "link of the record (`share_token`, `x-share-token`).",
)

MEDIA_TYPE = "application/json"
SIGNATURE = "x-service-bundle-signature"
SIGNED_HEADERS = {
    "ETag": header_of("The SHA-256 of the bytes, in hex."),
    SIGNATURE: header_of('`keyid="…", alg="ed25519", sig="<base64>"`, over exactly these bytes.'),
}


@blp.serves(
    "GET /bundle",
    bundle_content(public=True),
    args=ShareTokenArgs,
    errors=(409, 410),
    endpoint="bundle",
)
@blp.sends_bytes({"type": "object"}, {"type": "string"}, SIGNED_HEADERS)
def read_bundle(args: dict[str, Any], record_id: UUID | None) -> Response:
    """Read the exact bytes that were signed

    Their signature is in `x-service-bundle-signature`, their SHA-256 is the ETag. After expiry the
    answer is 410, with the SHA-256 and the log index that remain.
    """
    return exact_bytes()


@reads_objects
def exact_bytes() -> Response:
    """Answer the signed bytes of the admitted record, with their signature."""
    master_keys = services().settings.master_keys
    with ExitStack() as held, admitted() as (session, record):
        bundles.require_kept(session, record)

        def read(start: int, stop: int) -> bytes:
            held.enter_context(share_of_memory(record.bundle_size))
            return bundles.content(session, master_keys, record)[start:stop]

        answered = conditional(record.bundle_sha256.hex(), record.bundle_size, read, MEDIA_TYPE)
        answered.call_on_close(held.pop_all().close)
    answered.headers[SIGNATURE] = bundle.signature_header(record.key_id, record.signature)
    return note_read(answered, record.id)


def signed_bytes(content: bytes, digest: str, key_id: str, signature: bytes) -> Response:
    """Answer bytes that were signed, with their signature."""
    answered = conditional_bytes(content, digest, MEDIA_TYPE)
    answered.headers[SIGNATURE] = bundle.signature_header(key_id, signature)
    return answered


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
    serve = blp.serves(
        f"GET {path}",
        bundle_content(public=public),
        {"type": "object"},
        args=ShareTokenArgs,
        errors=(409, 410, 412),
        endpoint=endpoint,
    )
    current = blp.alt_response(304, description="The caller has this version.")
    conditional = blp.doc(parameters=[IF_NONE_MATCH])
    return lambda view: serve(current(conditional(view)))


@_export("/prov.json", "prov", public=True)
def read_prov(args: dict[str, Any], record_id: UUID | None) -> Response:
    """Read the record as W3C PROV-JSON"""
    return export("prov.json")


@_export("/otlp-logs.json", "otlp_logs", public=False)
def read_logs(args: dict[str, Any], record_id: UUID | None) -> Response:
    """Read what happened as OpenTelemetry logs

    OTLP/JSON, `LogsData`: a log record for the record, one for each event of its steps and one for
    each step that failed, all with a body in words and a severity. Needs a key of the tenant or a
    share link, regardless of `bundle_visibility`.
    """
    return export("otlp-logs.json")


@_export("/otlp-traces.json", "otlp_traces", public=False)
def read_traces(args: dict[str, Any], record_id: UUID | None) -> Response:
    """Read the record and its steps as OpenTelemetry spans

    OTLP/JSON, `TracesData`. Needs a key of the tenant or a share link, regardless of
    `bundle_visibility`.
    """
    return export("otlp-traces.json")


_Write: TypeAlias = Callable[[Record, Bundle], Iterator[bytes]]
FORMATS: Mapping[str, _Write] = {
    "prov.json": lambda record, read: prov.write(
        read, sha256=record.bundle_sha256.hex(), base_url=services().settings.base_url
    ),
    "otlp-logs.json": lambda _, read: otlp.write_logs(read, version=VERSION),
    "otlp-traces.json": lambda _, read: otlp.write_traces(read, version=VERSION),
}


@reads_objects
def export(name: str) -> Response:
    """Answer the admitted record in one of `FORMATS`.

    The ETag is computed from the bundle, the format, BASE_URL, the name that the agent had when the
    record was made, and the exporters' code, so it is known without rendering.
    """
    with admitted() as (session, record):
        bundles.require_kept(session, record)
        agent_name = agents.name_at(session, record.tenant_id, record.agent_id, record.created_at)
    of = (record.bundle_sha256.hex(), name, _WRITERS, services().settings.base_url, agent_name)
    etag = sha256("\n".join(of).encode()).hexdigest()
    if is_current(etag):
        return not_modified(etag)
    # An iterator, so that werkzeug sets no Content-Length: the length is not known.
    answered = Response(iter(()), content_type=MEDIA_TYPE)
    if request.method != "HEAD":
        _fill(
            answered, etag, record, lambda raw: FORMATS[name](record, bundle.read(raw, agent_name))
        )
    answered.set_etag(etag)
    return note_read(answered, record.id)


def _fill(
    answered: Response, etag: str, record: Record, write: Callable[[bytes], Iterator[bytes]]
) -> None:
    """Set a response's body; an export too large for the cache is rendered while it is sent."""
    renderings = services().renderings
    kept = renderings.get(etag)
    if kept is not None:
        answered.response = kept
        return
    with ExitStack() as held, large_work.room_for(record.bundle_size, record.tenant_id):
        # Another request may have rendered it while this one waited (single flight).
        kept = renderings.get(etag)
        if kept is not None:
            answered.response = kept
            return
        held.enter_context(share_of_memory(record.bundle_size))
        with admitted() as (session, _):
            raw = bundles.content(session, services().settings.master_keys, record)
        answered.response, whole = renderings.made(etag, write(raw))
        if not whole:
            answered.call_on_close(held.pop_all().close)


@blp.serves(
    "GET /log-proof",
    bundle_content(public=False),
    LogProofSchema,
    args=ShareTokenArgs,
    errors=(409,),
)
def read_log_proof(args: dict[str, Any], record_id: UUID | None) -> dict[str, Any]:
    """Read the inclusion proof of a record

    409 `log-pending` with `Retry-After` until a published checkpoint covers the record. That takes
    seconds or, where the service waits for its witnesses, as long as they take. Needs a key of the
    tenant or a share link of the record. The proof remains after the bundle has expired. Its
    checkpoint, the newest, has the cosignatures that witnesses have made so far.
    """
    with admitted() as (session, found):
        last = proofs.newest(session)
        proof = proofs.of_leaf(session, last, records.leaf_hash(found.bundle_sha256))
        note = quorum.cosigned(session, services().settings.witness_policy, last)
        return {**proof, "checkpoint": note.decode()}
