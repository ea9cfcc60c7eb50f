"""Attempts of deliveries: their times, the duration of each phase, the responses.

An attempt's id encodes the moment it was recorded, which is after its delivery was created. So the
age of a delivery bounds the partitions that can hold its attempts.
"""

import base64
import codecs
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import json_columns
from app.database import cursor
from app.lib.outbound.client import KEPT_BODY_BYTES

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
    headers = json_columns.from_text(attempt.response_headers)
    return {
        **summarise(attempt),
        "headers": headers,
        **_body(
            attempt.response_body,
            gzipped=_is_gzipped(headers),
            broken_off=attempt.error is not None,
        ),
    }


def summarise(attempt: Attempt) -> dict[str, Any]:
    """Return an attempt's JSON summary, for lists of deliveries."""
    return {
        "number": attempt.number,
        "at": rfc3339(attempt.started_at),
        "outcome": attempt.outcome,
        "status": attempt.status_code,
        "error": attempt.error,
        "timings": {
            "dns": attempt.dns_ms,
            "connect": attempt.connect_ms,
            "tls": attempt.tls_ms,
            "first_byte": attempt.first_byte_ms,
            "total": attempt.total_ms,
        },
    }


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
