"""HTTP headers of a delivery: its signatures, id, attempt and sequence number."""

from datetime import datetime
from uuid import UUID

from app import ids
from app.lib.crypto.webhook_signing import Signer
from app.settings import VERSION

_USER_AGENT = f"record-service/{VERSION}"


def of(
    signer: Signer,
    event_id: UUID,
    payload: bytes,
    at: datetime,
    *,
    attempt: int = 1,
    sequence: int | None = None,
) -> dict[str, str]:
    """Return all headers of one attempt, signed for the moment `at` (docs/formats.md).

    `attempt` counts from 1; `sequence` is the webhook's number of the event, if it has one.
    """
    headers = signer.headers(ids.text("evt", event_id), int(at.timestamp()), payload)
    headers["content-type"] = "application/json"
    headers["user-agent"] = _USER_AGENT
    headers["x-service-attempt"] = str(attempt)
    if sequence is not None:
        headers["x-service-sequence"] = str(sequence)
    return headers
