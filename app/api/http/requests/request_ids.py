"""The request id, which links a response, its log line and its audit entry."""

import re
from typing import cast

from flask import g, request

from app import ids

HEADER = "X-Request-ID"

_ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)


def request_id() -> str:
    """Return this request's id: the caller's `X-Request-ID` if it is well-formed, else a new id."""
    if "request_id" not in g:
        sent = request.headers.get(HEADER, "")
        g.request_id = sent if _ACCEPTED.fullmatch(sent) else ids.new().hex
    return cast(str, g.request_id)
