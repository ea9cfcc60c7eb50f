"""A session's statement and evidence pack over HTTP, answered as those of a record are."""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import structlog
from flask import Response, request
from sqlalchemy.orm import Session

from app import ids
from app.api.http import admission
from app.api.http.admission import Patience, patience, truncated_stream
from app.api.http.answers import conditional, conditional_bytes
from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.services import (
    Services,
    caller,
    client_address,
    request_id,
    services,
    transaction,
)
from app.api.resources.records import bundles, evidence_packs
from app.api.resources.records.bundle_access import note_content_read
from app.api.resources.records.evidence_packs import (
    DEFAULT_WAIT,
    LONGEST_RETRY_AFTER,
    MEDIA_TYPE,
    STATE,
    answers_a_pack,
)
from app.core import sessions
from app.core.callers import Role
from app.core.packs import pack_requests, session_packs, session_store
from app.core.packs.pack_requests import PackState
from app.core.packs.store import SessionPack, Vanished
from app.core.statements import statements
from app.database import Database
from app.errors import Busy, PackUnreadable, RateLimited, Unavailable
from app.evidence import bundle
from app.lib.crypto.sealing import CannotOpen, KeyMissing, MasterKeys
from app.models import SessionStatement

_log = structlog.get_logger(__name__)

blp = Blueprint(
    "session_evidence",
    __name__,
    url_prefix="/v1/sessions/<session_id>",
    description="All evidence of a completed session, in one ZIP that is verified offline.",
)

_REPLACED = "The evidence pack has just been replaced; ask again."


@blp.route("/evidence.zip", methods=["GET"], endpoint="evidence")
@requires(Role.READ)
@answers_a_pack(blp)
def read_evidence(session_id: str) -> Response:
    """Read the evidence pack of a whole session

    The session's signed statement with its proof in the log, every record's bundle and signature,
    and its findings: one ZIP, one verification, which names each record that is missing or was
    added. Bundles that have expired are named by their digests. It is built, waited for and
    answered as the pack of a record: 202 with `Location` and `Retry-After` until it is there. An
    open session is answered 409 `session-open`, one completed a moment ago 409 `statement-pending`.
    """
    return pack(session_id)


def statement(session_id: str) -> Response:
    """Answer the exact bytes of a session's statement; raises `SessionOpen`, `StatementPending`."""
    with transaction() as session:
        stored = _stored(session, session_id)
    answered = conditional_bytes(stored.body, stored.sha256.hex(), bundles.MEDIA_TYPE)
    signed = bundle.signature_header(stored.key_id, stored.signature)
    answered.headers[bundles.SIGNATURE] = signed
    return answered


def pack(session_id: str) -> Response:
    """Answer a session's evidence pack or its build's progress; raises as the route."""
    answered = _asked(session_id)
    if answered.status_code in (200, 206) and request.method != "HEAD":
        note_content_read(caller(), *filter(None, [ids.parse("ses", session_id)]), kind="session")
    return answered


def _asked(session_id: str) -> Response:
    settings, wait = services().settings, patience(DEFAULT_WAIT)
    if not admission.has_waited():
        with transaction() as session:
            stored = _stored(session, session_id)
            found = session_packs.ask(session, settings, stored)
            job = evidence_packs.worth_waiting_for(found, wait)
            if job is None:
                return _answer(session, stored, found, wait)
        with suppress(RateLimited):
            if (dropped := evidence_packs.wait_for(job, wait, caller())) is not None:
                return dropped
    with transaction() as session:
        stored = _stored(session, session_id)
        found = session_packs.ask(session, settings, stored, any_pack=True)
        return _answer(session, stored, found, wait)


def _stored(session: Session, session_id: str) -> SessionStatement:
    found = sessions.find(session, caller(), ids.parse("ses", session_id))
    return statements.of(session, found)


def _answer(
    session: Session, stored: SessionStatement, found: PackState[SessionPack], wait: Patience
) -> Response:
    if found.pack is not None:
        answered = send(session, found.pack)
        answered.headers[STATE] = "current" if found.is_current else "outdated"
    else:
        answered = evidence_packs.pending(found.job, caller())
    return evidence_packs.with_preference(answered, wait)


def send(session: Session, found: SessionPack) -> Response:
    """Answer a session's pack, or a range of it. Raises `PackUnreadable` and `Busy`."""
    here = services()

    def read(start: int, stop: int) -> Iterator[bytes]:
        first = _first_part(session, here.settings.master_keys, found, start)
        pack_requests.note_export(session, found, caller().actor(), request_id(), client_address())
        parts = _parts(here, found, (start, stop), first)
        return truncated_stream(parts, request_id(), partial(_told, here.database, found))

    answered = conditional(found.sha256.hex(), found.size, read, MEDIA_TYPE)
    name = f"{ids.text('ses', found.session_id)}-evidence.zip"
    answered.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answered


def _first_part(
    session: Session, master_keys: MasterKeys, pack: SessionPack, start: int
) -> tuple[int, bytes]:
    """Return the part where the response begins, while an error can still be answered."""
    try:
        return session_store.read_part(session, master_keys, pack, start)
    except KeyMissing as error:
        _log.error("pack_without_key", session=str(pack.session_id), reason=str(error))
        detail = "A bundle in it was sealed under a master key that this service does not have now."
        raise PackUnreadable(detail, LONGEST_RETRY_AFTER) from None
    except CannotOpen:
        evidence_packs.discard(services().database, pack)
        raise PackUnreadable("A bundle was changed in the database; another is built.", 1) from None
    except Vanished:
        raise Busy(_REPLACED) from None


def _parts(
    here: Services, pack: SessionPack, wanted: tuple[int, int], first: tuple[int, bytes]
) -> Iterator[bytes]:
    """Yield the bytes from `start` to `stop`, of which `first` is the part that begins them."""
    (at, stop), (begins, part) = wanted, first

    def read() -> tuple[int, bytes]:
        with here.database.transaction(pack.tenant_id) as session:
            return session_store.read_part(session, here.settings.master_keys, pack, at)

    while True:
        yield part[at - begins : stop - begins]
        at = begins + len(part)
        if at >= stop:
            return
        begins, part = here.fetching(read)


def _told(database: Database, pack: SessionPack, error: Exception) -> bool:
    """Log the error that ends a download, and discard a pack with a changed bundle."""
    if isinstance(error, CannotOpen) and not isinstance(error, KeyMissing):
        evidence_packs.discard(database, pack)
    elif isinstance(error, Vanished):
        _log.info("pack_deleted", session=str(pack.session_id))
    return isinstance(error, (CannotOpen, Vanished, Unavailable))
