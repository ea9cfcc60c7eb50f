"""Evidence pack downloads: a stored ZIP, streamed part by part.

Each part is read in a short transaction of its own, so memory does not grow with the pack and a
slow reader holds no connection. A failure midway ends the response short of its Content-Length.
"""

import math
from collections.abc import Iterator
from functools import partial

import structlog
from flask import Response
from sqlalchemy.orm import Session

from app import ids
from app.api.http.admission import truncated_stream
from app.api.http.requests.headers import request_id
from app.api.http.responses.answers import conditional
from app.api.http.services import services
from app.api.resources.records.bundle_access import admission
from app.core.callers import Actor, Caller
from app.core.packs import pack_requests, store
from app.core.packs.store import StoredPack, Vanished
from app.core.records import contents
from app.database import Database
from app.errors import Busy, PackUnreadable
from app.lib.crypto.sealing import CannotOpen, KeyMissing, MasterKeys
from app.models import Record

MEDIA_TYPE = "application/zip"
LONGEST_RETRY_AFTER = 60

_log = structlog.get_logger(__name__)


class Damaged(Exception):
    """A stored part does not open: the pack is discarded and built anew from its bundle."""

    def __init__(self, pack: StoredPack) -> None:
        super().__init__(f"pack {pack.id} does not open")
        self.pack = pack


def send(session: Session, record: Record, pack: StoredPack, holder: Caller | None) -> Response:
    """Answer a pack or a range. Raises `Damaged`, `PackUnreadable`, `Busy` or `BundleExpired`."""
    master_keys = services().settings.master_keys

    def read(start: int, stop: int) -> Iterator[bytes]:
        first = _first_part(session, master_keys, record, pack, start)
        pack_requests.note_export(session, pack, _taker(holder), request_id())
        database = services().database
        parts = _parts(database, master_keys, pack, (start, stop), first)
        return truncated_stream(parts, request_id(), partial(_told, database, pack))

    answered = conditional(pack.sha256.hex(), pack.size, read, MEDIA_TYPE)
    name = f"{ids.text('rec', pack.record_id)}-evidence.zip"
    answered.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answered


def _told(database: Database, pack: StoredPack, error: Exception) -> bool:
    """Log the error that ends a download, and discard a damaged pack; return if it is known."""
    if isinstance(error, KeyMissing):
        _log.error("pack_without_key", reason=str(error), **_names(pack))
    elif isinstance(error, CannotOpen):
        discard(database, pack)
    elif isinstance(error, Vanished):
        _log.info("pack_deleted", **_names(pack))
    return isinstance(error, (CannotOpen, Vanished))


def _taker(holder: Caller | None) -> Actor | None:
    """Return the audit chain's actor of the download; None without a key and without a link."""
    if holder is not None:
        return holder.actor()
    link_id = admission().link_id
    return None if link_id is None else Actor("link", ids.text("shr", link_id))


def _first_part(
    session: Session, master_keys: MasterKeys, record: Record, pack: StoredPack, start: int
) -> bytes:
    """Return the part where the response begins, while an error can still be answered."""
    try:
        return store.read_part(session, master_keys, pack, start // store.PART_BYTES)
    except KeyMissing as error:
        _log.error("pack_without_key", reason=str(error), **_names(pack))
        detail = "It was sealed under a master key that this service does not have now."
        raise PackUnreadable(detail, LONGEST_RETRY_AFTER) from None
    except CannotOpen:
        raise Damaged(pack) from None
    except Vanished:
        contents.require_kept(session, record)
        raise Busy("The evidence pack has just been replaced; ask again.") from None


def _parts(
    database: Database,
    master_keys: MasterKeys,
    pack: StoredPack,
    wanted: tuple[int, int],
    first: bytes,
) -> Iterator[bytes]:
    """Yield the bytes from `start` to `stop`, of which `first` is the part that begins them."""
    start, stop = wanted
    number = start // store.PART_BYTES
    begins = number * store.PART_BYTES
    yield first[start - begins : stop - begins]
    for each in range(number + 1, math.ceil(stop / store.PART_BYTES)):
        with database.transaction(pack.tenant_id) as session:
            part = store.read_part(session, master_keys, pack, each)
        yield part[: stop - each * store.PART_BYTES]


def _names(pack: StoredPack) -> dict[str, str]:
    return {"record": ids.text("rec", pack.record_id), "pack": str(pack.id)}


def discard(database: Database, pack: StoredPack) -> None:
    """Delete a damaged pack; the next request starts a new build."""
    _log.error("pack_damaged", **_names(pack))
    with database.transaction(pack.tenant_id) as session:
        store.discard(session, pack.tenant_id, pack.id)
