"""`Idempotency-Key`: a repeated POST is executed once, and gets the first one's response."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from flask import Response, request

from app.api.http import parsing
from app.api.http.answers import answer, encode
from app.api.http.services import caller, services
from app.core import idempotency
from app.database import Tx
from app.errors import FieldError, Invalid

HEADER = "Idempotency-Key"
REPLAYED = {"Idempotent-Replayed": "true"}

_KEY = re.compile(r"[\x20-\x7e]{1,255}")


def sent_key() -> str | None:
    """Return the request's Idempotency-Key, or None; raises `Invalid` for a malformed one.

    For a dry run, which stores no response but refuses a malformed key as other requests do.
    """
    key = request.headers.get(HEADER)
    if key is not None and _KEY.fullmatch(key) is None:
        raise Invalid(
            FieldError(
                parsing.pointer(HEADER), "Request header: send 1 to 255 printable ASCII characters."
            )
        )
    return key


def sent_request() -> idempotency.Request | None:
    """Return this request as one that may be repeated, or None without an Idempotency-Key.

    Raises `Invalid` for a malformed one.
    """
    key = sent_key()
    if key is None:
        return None
    body = parsing.canonical_body()
    return idempotency.Request.of(caller(), key, request.method, request.path, body)


def once(
    session: Tx,
    status: int,
    make: Callable[[], dict[str, Any]],
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer with the body that `make` returns, or replay the first response of a repeated request.

    Runs in the route's own transaction; `make` returns the JSON-ready body. If it raises, nothing
    is stored. Raises `Invalid`, `IdempotencyKeyReused` and `IdempotencyKeyInUse`.
    """
    repeat = sent_request()
    if repeat is None:
        return answer(make(), status, headers)
    master_keys = services().settings.master_keys
    kept = repeat.find(session, master_keys)
    if kept is not None:
        first = json.loads(kept[1])
        return answer(first["body"], kept[0], {**first["headers"], **REPLAYED})
    made = {"body": make(), "headers": dict(headers or {})}
    repeat.keep(session, master_keys, status, encode(made))
    return answer(made["body"], status, headers)
