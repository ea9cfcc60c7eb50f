"""Digests of a tenant, with times and numbers of findings."""

import enum
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import fields
from app.lib.mail.mailer import Refusal
from app.models import Digest
from app.schemas import AnswerSchema


class Status(enum.StrEnum):
    """The status of a digest."""

    PENDING = "pending"
    SENDING = "sending"
    SENT = "sent"
    UNCERTAIN = "uncertain"
    CONTENT_REFUSED = "content_refused"
    RECIPIENT_REFUSED = "recipient_refused"
    CANCELLED = "cancelled"


class DigestSchema(AnswerSchema):
    """One digest, without the address."""

    id = fields.Id("dig")
    status = fields.Choice(
        Status,
        description="`uncertain`: the mail server's answer was lost, and the next digest "
        "lists the same again. `content_refused`: the mail server refused it for good, also "
        "`brief`; the next digest, a day later, lists the same again. `recipient_refused`: the "
        "mail server refuses the address for good; it is tried once a day, and at once when the "
        "address is changed. `cancelled`: the address was cleared before it was sent.",
    )
    findings = fields.Count(
        allow_none=True,
        description="How many new findings it lists; null until they are selected. "
        "`GET /v1/findings?digest_id=` lists them.",
    )
    repeats = fields.Id(
        "dig", allow_none=True, description="The `uncertain` digest whose findings it repeats."
    )
    refusals = fields.Count(description="How often the mail server did not answer or refused it.")
    error = fields.Text(1000, allow_none=True, description="What the last attempt failed of.")
    said = fields.Text(
        1000,
        allow_none=True,
        description="The mail server's own words with `error`; the address in them is left out.",
    )
    brief = fields.Boolean(
        description="It has numbers, severities and links only, because the mail server refused it "
        "with the findings' titles."
    )
    claimed_at = fields.Time()
    data_at = fields.Time(
        allow_none=True, description="From then on the mail server may have accepted the mail."
    )
    sent_at = fields.Time(allow_none=True)


def rows(session: Session, tenant_id: UUID, before: UUID | None, limit: int) -> Sequence[Digest]:
    """Return up to `limit` of a tenant's digests, newest first, older than the id `before`."""
    query = select(Digest).where(Digest.tenant_id == tenant_id)
    if before is not None:
        query = query.where(Digest.id < before)
    return session.scalars(query.order_by(Digest.id.desc()).limit(limit)).all()


def represent(digest: Digest) -> dict[str, Any]:
    """Return a digest's JSON representation in the list, without its address."""
    return DigestSchema.of(digest, status=_status(digest))


def _status(digest: Digest) -> str:
    """Return the status; one that waits because its recipient was refused for good says so."""
    refused = digest.status == "pending" and digest.refusal == Refusal.RECIPIENT
    return "recipient_refused" if refused else digest.status
