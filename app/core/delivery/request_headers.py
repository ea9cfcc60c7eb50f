"""HTTP headers of a delivery: its signatures, id, attempt and sequence number, the receiver's own.

A receiver's own headers are those that its webhook names, such as `Authorization`.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from uuid import UUID

from app import ids
from app.lib.crypto.webhook_signing import Signer
from app.settings import VERSION

MOST_OWN = 20
MOST_OWN_BYTES = 4096
# RFC 9110, sections 5.1 and 5.5: a token; visible ASCII, with spaces inside.
NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
VALUE = r"[!-~]([ -~]*[!-~])?"

_USER_AGENT = f"record-service/{VERSION}"
_NONE: Mapping[str, str] = MappingProxyType({})
_NAME, _VALUE = re.compile(NAME), re.compile(VALUE)
# What a delivery has already, what frames a message or belongs to one connection (RFC 9110, section
# 7.6.1), and what says how an answer may be written.
_RESERVED = re.compile(
    r"accept-encoding|connection|content-.*|expect|host|http2-settings|keep-alive|proxy-.*|te"
    r"|trailer|transfer-encoding|upgrade|user-agent|webhook-.*|x-service-.*",
    re.IGNORECASE,
)


def of(
    signer: Signer,
    event_id: UUID,
    payload: bytes,
    at: datetime,
    *,
    attempt: int = 1,
    sequence: int | None = None,
    lane: int | None = None,
    epoch: UUID | None = None,
    own: Mapping[str, str] = _NONE,
) -> dict[str, str]:
    """Return all headers of one attempt, signed for the moment `at` (docs/formats.md).

    `attempt` counts from 1; `sequence` is the webhook's number of the event, if it has one, in
    `epoch`, and `lane` the number of the lane that gave it, where there are several; `own` are the
    receiver's own headers, of which `refusal` lets none replace another.
    """
    headers = signer.headers(ids.text("evt", event_id), int(at.timestamp()), payload)
    headers["content-type"] = "application/json"
    headers["user-agent"] = _USER_AGENT
    headers["x-service-attempt"] = str(attempt)
    if sequence is not None:
        headers["x-service-sequence"] = str(sequence)
    if lane is not None:
        headers["x-service-lane"] = str(lane)
    if epoch is not None:
        headers["x-service-epoch"] = ids.text("epo", epoch)
    return {**own, **headers}


def refusal(name: str, value: str) -> str | None:
    """Return why a receiver's own header cannot be sent, without its value; None if it can."""
    if _NAME.fullmatch(name) is None:
        return "A header's name has letters, digits and !#$%&'*+-.^_`|~ alone."
    if _RESERVED.fullmatch(name) is not None:
        return "This header is the service's or HTTP's own: leave it out."
    if _VALUE.fullmatch(value) is None:
        return "A header's value is visible ASCII, with spaces inside alone."
    return None
