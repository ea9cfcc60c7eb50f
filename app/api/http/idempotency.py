"""`Idempotency-Key`: a repeated POST is executed once, and gets the first one's response."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from flask import Response, request

from app.api.http import parsing
from app.api.http.answers import answer, answer_written, encode
from app.api.http.services import caller, services, transaction
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
    status: int,
    make: Callable[[Any], dict[str, Any]],
    within: Callable[[], AbstractContextManager[Tx]] = transaction,
) -> Response:
    """Answer with the body that `make` returns, or replay the first response of a repeated request.

    `make` is called with the session of a transaction, in which the response is stored; if it
    raises, nothing is. Raises `Invalid`, `IdempotencyKeyReused` and `IdempotencyKeyInUse`.
    """
    with within() as session:
        repeat = sent_request()
        if repeat is None:
            return answer(make(session), status)
        master_keys = services().settings.master_keys
        kept = repeat.find(session, master_keys)
        if kept is not None:
            return answer_written(kept[1], kept[0], REPLAYED)
        body = encode(make(session))
        repeat.keep(session, master_keys, status, body)
        return answer_written(body, status)
