"""Attempts of deliveries: their times, the duration of each phase, the responses.

The last one lies in the row of a delivery that is over. The id of another encodes the moment it was
recorded, which is after its delivery was created: the delivery's age bounds the partitions that can
hold its attempts.
"""

import base64
import codecs
import json
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from marshmallow import fields as plain
from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.database import cursor
from app.lib.outbound.client import KEPT_BODY_BYTES
from app.schemas import fields
from app.schemas.schema import AnswerSchema

# Deliveries and attempts get their ids from the clocks of different hosts.
CLOCKS_DIFFER_BY = timedelta(hours=1)


@dataclass(frozen=True)
class Attempt:
    """An attempt; durations of phases in milliseconds, None for a phase that did not happen."""

    delivery_id: UUID
    number: int
    outcome: str
    started_at: datetime
    dns_ms: float | None
    connect_ms: float | None
    tls_ms: float | None
    first_byte_ms: float | None
    total_ms: float | None
    status_code: int | None
    error: str | None
    response_headers: str | None
    response_body: bytes | None


_COLUMNS = """
a.delivery_id, a.number, a.outcome, a.started_at, a.dns_ms, a.connect_ms, a.tls_ms, a.first_byte_ms,
a.total_ms, a.status_code, a.error
"""

_ALL = f"""
SELECT {_COLUMNS}, a.response_headers, a.response_body
  FROM delivery_attempts AS a
 WHERE a.tenant_id = (SELECT %(tenant)s::uuid) AND a.delivery_id = %(delivery)s
   AND a.id >= %(oldest)s
 ORDER BY a.number
"""

_LAST = f"""
SELECT DISTINCT ON (a.delivery_id) {_COLUMNS}, NULL AS response_headers, NULL AS response_body
  FROM delivery_attempts AS a
 WHERE a.tenant_id = (SELECT %(tenant)s::uuid) AND a.delivery_id = ANY (%(deliveries)s)
   AND a.id >= %(oldest)s
 ORDER BY a.delivery_id, a.number DESC
"""


class TimingsSchema(AnswerSchema):
    """Duration of each phase in milliseconds; null for a phase that did not happen."""

    dns = plain.Float(attribute="dns_ms", allow_none=True)
    connect = plain.Float(attribute="connect_ms", allow_none=True)
    tls = plain.Float(attribute="tls_ms", allow_none=True)
    first_byte = plain.Float(attribute="first_byte_ms", allow_none=True)
    total = plain.Float(attribute="total_ms", allow_none=True)


class AttemptSummarySchema(AnswerSchema):
    """A delivery attempt."""

    number = fields.Count(example=2)
    at = fields.Time(attribute="started_at")
    outcome = fields.Text(50, example="refused")
    status = fields.Integer(
        0,
        999,
        attribute="status_code",
        allow_none=True,
        description="The HTTP status of the response.",
        example=503,
    )
    error = fields.Text(10_000, allow_none=True)
    timings = fields.Object(TimingsSchema)


class AttemptSchema(AttemptSummarySchema):
    """A delivery attempt, with the receiver's response."""

    headers = plain.List(plain.List(plain.String()), allow_none=True)
    body = plain.String(
        allow_none=True, metadata={"description": "The first 4 KiB, as text; gzip is unpacked."}
    )
    body_base64 = plain.String(
        allow_none=True,
        metadata={"description": "The bytes that came, exactly, where they are not UTF-8."},
    )


def of(session: Session, tenant_id: UUID, delivery_id: UUID) -> list[Attempt]:
    """Return every attempt of one delivery, first to last."""
    found = cursor(session, class_row(Attempt)).execute(
        _ALL, {"tenant": tenant_id, "delivery": delivery_id, "oldest": _oldest(delivery_id)}
    )
    return found.fetchall()


def last_of(
    session: Session, tenant_id: UUID, delivery_ids: Collection[UUID]
) -> dict[UUID, Attempt]:
    """Return the last attempt of each delivery that has one, without headers and body."""
    if not delivery_ids:
        return {}
    found = cursor(session, class_row(Attempt)).execute(
        _LAST,
        {
            "tenant": tenant_id,
            "deliveries": list(delivery_ids),
            "oldest": _oldest(min(delivery_ids)),
        },
    )
    return {attempt.delivery_id: attempt for attempt in found.fetchall()}


def represent(attempt: Attempt) -> dict[str, Any]:
    """Return the JSON representation of an attempt with the receiver's response.

    `body` is the kept part as text, unpacked if it is gzip; if that is not UTF-8, `body_base64` has
    the exact bytes that came.
    """
    headers = json.loads(attempt.response_headers) if attempt.response_headers else None
    body = _body(
        attempt.response_body, gzipped=_is_gzipped(headers), broken_off=attempt.error is not None
    )
    return {**summarise(attempt), "headers": headers, **body}


def summarise(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt's JSON summary, for lists of deliveries."""
    return AttemptSummarySchema.of(attempt, timings=TimingsSchema.of(attempt))


def _is_gzipped(headers: Any) -> bool:
    return any(
        name.lower() == "content-encoding" and value.strip().lower() in ("gzip", "x-gzip")
        for name, value in headers or ()
    )


def _body(raw: bytes | None, *, gzipped: bool, broken_off: bool) -> dict[str, str | None]:
    if raw is None:
        return {"body": None, "body_base64": None}
    shown = (_unpack(raw) if gzipped else None) or raw
    # The part that was kept may end inside a character.
    cut = broken_off or len(shown) >= KEPT_BODY_BYTES
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(shown, final=not cut)
    except UnicodeDecodeError:
        exact = base64.b64encode(raw).decode("ascii")
        return {"body": shown.decode("utf-8", "replace"), "body_base64": exact}
    return {"body": text, "body_base64": None}


def _unpack(raw: bytes) -> bytes | None:
    """Return the beginning of what gzip packed; None if it is no gzip."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(raw, KEPT_BODY_BYTES)
    except zlib.error:
        return None


def _oldest(delivery_id: UUID) -> UUID:
    return ids.earliest_at(ids.made_at(delivery_id) - CLOCKS_DIFFER_BY)
