"""A session's statement and evidence pack over HTTP, answered as those of a record are."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from flask import Response, request
from sqlalchemy.orm import Session

from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.services import caller, transaction
from app.api.resources.records.bundle_access import note_content_read
from app.api.resources.records.bundles import signed_bytes
from app.api.resources.records.evidence_packs import Asked, answer_pack, answers_a_pack
from app.core import sessions
from app.core.callers import Role
from app.core.packs.session_packs import SessionSubject
from app.core.statements import statements
from app.models import SessionStatement

blp = Blueprint(
    "session_evidence",
    __name__,
    url_prefix="/v1/sessions/<session_id>",
    description="All evidence of a completed session, in one ZIP that is verified offline.",
)


@blp.route("/evidence.zip", methods=["GET"], endpoint="evidence")
@requires(Role.READ)
@answers_a_pack(blp)
def read_evidence(session_id: UUID | None) -> Response:
    """Read the evidence pack of a whole session

    The session's signed statement with its proof in the log, every record's bundle and signature,
    and its findings: one ZIP, one verification, which names each record that is missing or was
    added. Bundles that have expired are named by their digests. It is built, waited for and
    answered as the pack of a record: 202 with `Location` and `Retry-After` until it is there. An
    open session is answered 409 `session-open`, one completed a moment ago 409 `statement-pending`.
    """
    return pack(session_id)


def statement(session_id: UUID | None) -> Response:
    """Answer the exact bytes of a session's statement; raises `SessionOpen`, `StatementPending`."""
    with transaction() as session:
        stored = _stored(session, session_id)
    return signed_bytes(stored.body, stored.sha256.hex(), stored.key_id, stored.signature)


def pack(session_id: UUID | None) -> Response:
    """Answer a session's evidence pack or its build's progress; raises as the route."""

    @contextmanager
    def opened() -> Iterator[Asked]:
        with transaction() as session:
            subject = SessionSubject(_stored(session, session_id))
            yield Asked(session, subject, caller(), caller().actor())

    answered = answer_pack(opened)
    if answered.status_code in (200, 206) and request.method != "HEAD":
        note_content_read(caller(), *filter(None, [session_id]), kind="session")
    return answered


def _stored(session: Session, session_id: UUID | None) -> SessionStatement:
    found = sessions.find(session, caller(), session_id)
    return statements.of(session, found)
