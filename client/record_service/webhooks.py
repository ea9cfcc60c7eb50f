"""Webhook deliveries as a receiver checks them, and as `listen` signs them.

What is signed is `{webhook-id}.{webhook-timestamp}.{body}`, with HMAC-SHA256, keyed by the base64
after `whsec_`: `webhook-signature` (https://www.standardwebhooks.com) has it, and
`x-service-signature-v2`. Nothing here needs a connection, or a package beside Python's own.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Union

from record_service.errors import RecordsError

if TYPE_CHECKING:
    from record_service.schemas import Payload

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300
ID, TIMESTAMP = "webhook-id", "webhook-timestamp"
STANDARD, OURS = "webhook-signature", "x-service-signature-v2"
SEQUENCE, EPOCH = "x-service-sequence", "x-service-epoch"
_SECONDS = re.compile(r"[0-9]{1,15}", re.ASCII)

Headers = Union[Mapping[str, str], Iterable[tuple[str, str]]]


class NotVerified(RecordsError):
    """A request is no genuine delivery, or not of now: answer 400, and do nothing else with it."""


class HeadersMissing(NotVerified):
    """It lacks a header that every delivery has, or has one in another form."""


class TooOld(NotVerified):
    """Its time is too far from now: a request that is played again, or a clock that is wrong."""


class SignatureWrong(NotVerified):
    """No secret given has signed these bytes: another secret, or a body that was changed."""


class SecretMalformed(RecordsError):
    """A secret given is none; its text is not repeated."""


def verify(
    secrets: str | Iterable[str],
    headers: Headers,
    body: bytes,
    *,
    tolerance: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> Payload:
    """Return the event of a delivery, once a secret has signed it within the tolerance.

    `secrets` is the webhook's secret, or several while one is replaced by another. `headers` are a
    framework's, in any case, or a WSGI environment's `HTTP_…`; `body` is the bytes as they came.
    `tolerance` is in seconds, before and after `now` (Unix seconds, by default this machine's).
    Signatures are compared in constant time. Raises `NotVerified`, by its kind, and
    `SecretMalformed`. A delivery may come twice within the tolerance: `webhook-id` tells.
    """
    if not isinstance(body, (bytes, bytearray, memoryview)):
        raise TypeError("body is the request's bytes as they came, before anything parsed them.")
    given: object = secrets
    if isinstance(given, (bytes, bytearray)):
        raise SecretMalformed("A webhook's secret is text, as it was shown once, not bytes.")
    keys = [_key(each) for each in ([secrets] if isinstance(secrets, str) else secrets)]
    if not keys:
        raise SecretMalformed("There is no secret to verify by.")
    found = _normalised(headers)
    named = f"{_one(found, ID)}.{_timestamp(found, tolerance, now)}."
    # Some frameworks read bytes that are no text as halves of surrogate pairs.
    content = named.encode("utf-8", "surrogatepass") + bytes(body)
    sent = list(_signatures(found))
    if not sent:
        raise HeadersMissing(f"{STANDARD} has no signature of a known version (v1).")
    # All are compared, however early one matches.
    matches = [
        hmac.compare_digest(hmac.digest(key, content, "sha256"), each)
        for key in keys
        for each in sent
    ]
    if not any(matches):
        raise SignatureWrong(
            "No signature is of this secret and body: use the webhook's own secret, and the bytes "
            "as they came, not parsed and written anew."
        )
    event: Payload = json.loads(bytes(body))
    return event


def place(headers: Headers) -> tuple[int, str] | None:
    """Return a delivery's number and the epoch in which it holds; None of one without a number.

    Keep both of the newest: `GET /v1/webhooks/:id/deliveries` takes them as `after` and `epoch`.
    `errors.HistoryRolledBack` says where the service lost events.
    """
    found = _normalised(headers)
    sequence, epoch = (found.get(name, [""])[0] for name in (SEQUENCE, EPOCH))
    return (int(sequence), epoch) if sequence.isdecimal() and epoch else None


def sign(secret: str, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the signature headers of one request; `timestamp` is in whole Unix seconds.

    For a receiver's own tests. Raises `SecretMalformed`.
    """
    signature = hmac.digest(_key(secret), f"{event_id}.{timestamp}.".encode() + body, "sha256")
    return {
        ID: event_id,
        TIMESTAMP: str(timestamp),
        STANDARD: f"v1,{base64.b64encode(signature).decode()}",
        OURS: f"t={timestamp},v2={signature.hex()}",
    }


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.strip()[len(PREFIX) :], validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.strip().startswith(PREFIX) or not key:
        raise SecretMalformed(f"A webhook's secret is {PREFIX} and base64, as it was shown once.")
    return key


def _normalised(headers: Headers) -> dict[str, list[str]]:
    """Return all values of each header by its lower-case name; WSGI's names are read as well."""
    found: dict[str, list[str]] = {}
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        if isinstance(value, str):
            key = name.lower().replace("_", "-")
            found.setdefault(key.removeprefix("http-"), []).append(value.strip())
    return found


def _one(headers: Mapping[str, list[str]], name: str) -> str:
    """Return a header's value. One that is there twice could be read in two ways."""
    values = headers.get(name, [])
    if len(values) != 1 or not values[0]:
        raise HeadersMissing(f"The header {name} must be there, once.")
    return values[0]


def _timestamp(headers: Mapping[str, list[str]], tolerance: float, now: float | None) -> str:
    text = _one(headers, TIMESTAMP)
    if _SECONDS.fullmatch(text) is None:
        raise HeadersMissing(f"{TIMESTAMP} is not a number of Unix seconds.")
    away = int(text) - (time.time() if now is None else now)
    if not abs(away) <= tolerance:
        side = "in the future" if away > 0 else "old"
        raise TooOld(f"The request is {abs(away):.0f} s {side}; {tolerance:.0f} s are allowed.")
    return text


def _signatures(headers: Mapping[str, list[str]]) -> Iterable[bytes]:
    """Yield the signatures of both headers; versions that are not known are left out."""
    for text in headers.get(STANDARD, []):
        for each in text.split():
            version, _, value = each.partition(",")
            if version == "v1":
                yield _decoded(value)
    at = headers.get(TIMESTAMP, [""])[0]
    for text in headers.get(OURS, []):
        parts = [each.strip().partition("=") for each in text.split(",")]
        # Its own time must be the one that was looked at.
        if [value for name, _, value in parts if name == "t"] == [at]:
            for name, _, value in parts:
                if name == "v2" and len(value) == 64:
                    yield bytes.fromhex(value) if re.fullmatch("[0-9a-f]{64}", value) else b""


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
