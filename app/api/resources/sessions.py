"""Sessions over HTTP, with their statements and evidence packs."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from flask import Response, request
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app.api.http.answers import answer
from app.api.http.auth import READ, WRITE
from app.api.http.idempotency import once
from app.api.http.paging import FeedArgs, filters
from app.api.http.parsing import load
from app.api.http.routes import Routes
from app.api.http.services import caller, transaction
from app.api.resources.agents import ExternalIdSchema
from app.api.resources.records.bundle_access import note_content_read
from app.api.resources.records.bundles import SIGNED_HEADERS, signed_bytes
from app.api.resources.records.evidence_packs import Asked, answer_pack, answers_a_pack
from app.core import sessions
from app.core.packs.subjects import SessionSubject
from app.core.records import statements
from app.core.sessions import SessionSchema
from app.models import SessionStatement
from app.schemas import fields
from app.schemas.schema import Schema

blp = Routes(
    "sessions",
    __name__,
    url_prefix="/v1/sessions",
    description="Runs of an agent on behalf of a principal.",
)


class _SessionSchema(Schema):
    """The fields of a session to open."""

    principal = SessionSchema.field("principal", required=True)
    title = SessionSchema.field("title")
    metadata = SessionSchema.field("metadata")


class NewSessionSchema(_SessionSchema):
    """A session to open."""

    agent_id = fields.Id("agt", required=True)
    external_id = fields.ExternalId(allow_none=True)


class NamedSessionSchema(_SessionSchema):
    """A session to get or to open."""

    agent_id = fields.Id("agt", description="One of `agent_id` and `agent_external_id`.")
    agent_external_id = fields.ExternalId()

    def check(self, sent: Mapping[str, Any]) -> None:
        """Require exactly one name of the agent."""
        if len({"agent_id", "agent_external_id"} & sent.keys()) != 1:
            text = "Send either agent_id or agent_external_id."
            raise ValidationError(text, "agent_id")


class CompletionSchema(Schema):
    """How a session ended."""

    outcome = fields.Choice(sessions.GivenOutcome, required=True)
    summary = fields.Text(10_000, allow_none=True)


class SessionArgs(FeedArgs):
    """Filters of the sessions."""

    status = fields.Choice(sessions.SessionStatus)
    external_id = fields.ExternalId()
    q = fields.Text(
        1000,
        description="Words or parts of them, all in its title, external id and principal, in any "
        "case.",
    )


@blp.serves("POST", WRITE, SessionSchema, 201, takes=NewSessionSchema, errors=(404,))
def create(body: dict[str, Any]) -> Response:
    """Open a session.

    An unknown agent is answered 404, and so are an agent and a principal outside the key's pin.
    """
    return once(201, lambda session: sessions.represent(sessions.create(session, caller(), **body)))


@blp.lists("", READ, SessionSchema, SessionArgs)
def list_sessions(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """List sessions, newest first.

    A page may hold fewer sessions than `limit` (of a search, even none) although more follow:
    continue while there is a `next_cursor`.
    """
    return sessions.rows(session, caller(), filters(args), *where)


@blp.serves(
    "PUT /by-external-id/<rest:external_id>",
    WRITE,
    SessionSchema,
    takes=NamedSessionSchema,
    errors=(404,),
)
@blp.alt_response(201, schema=SessionSchema, description="It did not exist and was opened.")
def put(body: dict[str, Any], external_id: str) -> Response:
    """Get or open a session by its external id.

    Safe to repeat, and at once. `title` and `metadata` are set if sent. The session of another
    agent or principal is answered 409 `external-id-in-use`; an unknown agent 404, and so are an
    agent and a principal outside the key's pin.
    """
    load(ExternalIdSchema(), {"external_id": external_id})
    with transaction() as session:
        found, is_new = sessions.put(session, caller(), external_id, **body)
        return answer(sessions.represent(found), 201 if is_new else 200)


@blp.serves("GET /<session_id>", READ, SessionSchema)
def read(session_id: UUID | None) -> dict[str, Any]:
    """Read a session."""
    with transaction() as session:
        return sessions.represent(sessions.find(session, caller(), session_id))


@blp.serves("GET /<session_id>/statement", READ, errors=(409,))
@blp.sends_bytes({"type": "object"}, {"type": "string"}, SIGNED_HEADERS)
def read_statement(session_id: UUID | None) -> Response:
    """Read the signed statement of a completed session

    The exact bytes that were signed: how many records the session held, the Merkle root over the
    SHA-256 of their bundles in order of creation, its findings so far by severity, and its outcome.
    Their signature is in `x-service-bundle-signature`, their SHA-256 is the ETag. An open session
    is answered 409 `session-open`; one that was completed a moment ago 409 `statement-pending`,
    with `Retry-After`. A statement remains after its records' bundles have expired.
    """
    with transaction() as session:
        stored = _stored(session, session_id)
    return signed_bytes(stored.body, stored.sha256.hex(), stored.key_id, stored.signature)


@blp.serves("POST /<session_id>/complete", WRITE, SessionSchema, takes=CompletionSchema)
def complete(body: dict[str, Any], session_id: UUID | None) -> Response:
    """Complete a session, once.

    A session that nothing came to for SESSION_IDLE_SECONDS is completed as `abandoned`.

    Emits `session.completed`. A second completion is answered 409, but a repeat with the same
    `Idempotency-Key` as the first. Findings may still be added, since analysis often ends after the
    agent's work.
    """
    return once(
        200,
        lambda session: sessions.represent(
            sessions.complete(session, caller(), session_id, **body)
        ),
    )


evidence = Routes(
    "session_evidence",
    __name__,
    url_prefix="/v1/sessions/<session_id>",
    description="All evidence of a completed session, in one ZIP that is verified offline.",
)


@evidence.serves("GET /evidence.zip", READ, endpoint="evidence")
@answers_a_pack(evidence)
def read_evidence(session_id: UUID | None) -> Response:
    """Read the evidence pack of a whole session

    The session's signed statement with its proof in the log, every record's bundle and signature,
    and its findings: one ZIP, one verification, which names each record that is missing or was
    added. Bundles that have expired are named by their digests. It is built, waited for and
    answered as the pack of a record: 202 with `Location` and `Retry-After` until it is there. An
    open session is answered 409 `session-open`, one completed a moment ago 409 `statement-pending`.
    """

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
