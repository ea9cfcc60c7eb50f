"""Digests of a tenant, with times and numbers of findings."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.lib.mail.mailer import Refusal
from app.models import Digest


def rows(session: Session, tenant_id: UUID, before: UUID | None, limit: int) -> Sequence[Digest]:
    """Return up to `limit` of a tenant's digests, newest first, older than the id `before`."""
    query = select(Digest).where(Digest.tenant_id == tenant_id)
    if before is not None:
        query = query.where(Digest.id < before)
    return session.scalars(query.order_by(Digest.id.desc()).limit(limit)).all()


def represent(digest: Digest) -> dict[str, Any]:
    """Return a digest's JSON representation in the list, without its address."""
    return {
        "id": ids.text("dig", digest.id),
        "status": _status(digest),
        "findings": digest.findings,
        "repeats": None if digest.repeats is None else ids.text("dig", digest.repeats),
        "refusals": digest.refusals,
        "error": digest.error,
        "said": digest.said,
        "brief": digest.brief,
        "claimed_at": rfc3339(digest.claimed_at),
        "data_at": None if digest.data_at is None else rfc3339(digest.data_at),
        "sent_at": None if digest.sent_at is None else rfc3339(digest.sent_at),
    }


def _status(digest: Digest) -> str:
    """Return the status; one that waits because its recipient was refused for good says so."""
    refused = digest.status == "pending" and digest.refusal == Refusal.RECIPIENT
    return "recipient_refused" if refused else digest.status
