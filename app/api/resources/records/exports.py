"""Period exports over HTTP: order one, follow its making, download its file, delete it."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain, islice
from typing import Any
from uuid import UUID

import structlog
from flask import Response
from sqlalchemy.orm import Session

from app import ids
from app.api.http.admission import truncated_stream
from app.api.http.answers import conditional
from app.api.http.auth import ADMIN_TENANT, READ_TENANT
from app.api.http.documentation import header_of
from app.api.http.idempotency import once
from app.api.http.routes import Routes
from app.api.http.services import caller, request_id, services, transaction
from app.api.resources.records.bundles import SIGNED_HEADERS, signed_bytes
from app.core.blobs.reading import Vanished
from app.core.exports import exports, parts
from app.core.exports.exports import FILE, ExportSchema, Found
from app.errors import ExportGone, NotFound, Unavailable
from app.lib.crypto.sealing import CannotOpen
from app.models import Export
from app.schemas import fields
from app.schemas.schema import Schema

MEDIA_TYPE = "application/x-ndjson"

_log = structlog.get_logger(__name__)

blp = Routes(
    "exports",
    __name__,
    url_prefix="/v1/exports",
    description="Signed exports of all records of a period, with their places in the log.",
)


class NewExportSchema(Schema):
    """The period to export, and of which agent."""

    since = fields.Time(required=True, description="Records created from then on, inclusive.")
    until = fields.Time(
        required=True, description="Up to then, exclusive; a moment that has passed."
    )
    agent_id = fields.Id("agt", allow_none=True, load_default=None)


def represent(found: Found) -> dict[str, Any]:
    """Return an export as JSON."""
    return exports.represent(services().settings, found)


_NDJSON = {"type": "string", "format": "binary"}
_HEADERS = {
    "ETag": header_of("The SHA-256 of the file, in hex."),
    "Content-Disposition": header_of("Its name."),
}


@blp.serves(
    "POST",
    ADMIN_TENANT,
    ExportSchema,
    202,
    takes=NewExportSchema,
    errors=(404, 409),
)
def create(body: dict[str, Any]) -> Response:
    """Export all records of a period, signed

    A job lists every record with its digest and its place in the log. Follow it by
    `GET /v1/exports/:id` until `state` is `ready`; then `download_url` has the file, which
    `verify.py export` verifies offline. A tenant keeps 100 exports, for `EXPORT_DAYS` each.
    """
    return once(202, lambda session: represent(exports.create(session, caller(), body)))


@blp.lists("", READ_TENANT, ExportSchema, represent=represent)
def list_exports(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """List exports, newest first"""
    return exports.rows(session, caller().tenant_id, *where)


@blp.serves("GET /<export_id>", READ_TENANT, ExportSchema)
def read(export_id: UUID | None) -> dict[str, Any]:
    """Read an export: its state, its totals and where its file is"""
    with transaction() as session:
        found = exports.find(session, caller().tenant_id, export_id)
        return represent(found)


@blp.serves("DELETE /<export_id>", ADMIN_TENANT, None, 204)
def delete(export_id: UUID | None) -> None:
    """Delete an export's file, or stop its making

    What was signed stays readable.
    """
    with transaction() as session:
        exports.delete(session, caller(), export_id)


@blp.serves("GET /<export_id>/statement", READ_TENANT)
@blp.sends_bytes({"type": "object"}, {"type": "string"}, SIGNED_HEADERS)
def statement(export_id: UUID | None) -> Response:
    """Read the exact bytes that were signed

    Their signature is in `x-service-bundle-signature`. They stay when the file has gone.
    """
    with transaction() as session:
        export = exports.find(session, caller().tenant_id, export_id).export
    if export.statement is None or export.signature is None or export.key_id is None:
        raise NotFound("This export is not signed yet.")
    digest = sha256(export.statement).hexdigest()
    return signed_bytes(export.statement, digest, export.key_id, export.signature)


@blp.serves(f"GET /<export_id>/{FILE}", READ_TENANT, errors=(410,))
@blp.sends_bytes(_NDJSON, _NDJSON, _HEADERS, MEDIA_TYPE)
def download(export_id: UUID | None) -> Response:
    """Download the file of an export that is ready

    NDJSON, as docs/formats.md has it; `verify.py export` verifies it offline. A range continues a
    download that broke off. Each key's first download is in the audit chain.
    """
    here = services()
    with transaction() as session:
        export = exports.find_made(session, caller().tenant_id, export_id)

    def read(start: int, stop: int) -> Iterator[bytes]:
        place = (export.tenant_id, export.id)
        pieces = parts.stream(here.database, here.settings, place, start, stop)
        # Read while an error can still be answered.
        try:
            first = [*islice(pieces, 1)]
        except (Vanished, CannotOpen) as error:
            _told(export, error)
            raise ExportGone("This export's file is damaged. Order another.") from error
        with transaction() as session:
            exports.note_download(session, caller(), export)
        rest = chain(first, pieces)
        return truncated_stream(rest, request_id(), lambda error: _told(export, error))

    answered = conditional((export.sha256 or b"").hex(), export.size, read, MEDIA_TYPE)
    name = f"{ids.text('exp', export.id)}.ndjson"
    answered.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answered


def _told(export: Export, error: Exception) -> bool:
    """Log the error that ends a download; return if it is known."""
    known = isinstance(error, (Vanished, CannotOpen, Unavailable))
    if known:
        _log.error("export_part_missing", export=ids.text("exp", export.id), reason=str(error))
    return known
