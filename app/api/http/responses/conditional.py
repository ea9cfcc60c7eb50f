"""Conditional requests and ranges (RFC 9110 sections 13 and 14): ETag, If-Match, Range.

werkzeug parses the headers; the decisions are made here, because werkzeug's differ from the RFC in
precedence (13.2.2), weak If-Range (13.1.5), unknown range units (14.2) and suffix ranges (14.1.2).
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from flask import Response, request
from werkzeug.exceptions import PreconditionFailed, RequestedRangeNotSatisfiable

# One range; a request for several gets the whole representation, as a server may (14.2).
_RANGE = re.compile(
    r"bytes=[ \t]*(?:([0-9]{1,19})-([0-9]{0,19})|-([0-9]{1,19}))", re.IGNORECASE | re.ASCII
)


def _header(name: str, description: str) -> dict[str, Any]:
    return {
        "in": "header",
        "name": name,
        "required": False,
        "description": description,
        "schema": {"type": "string"},
    }


# For the documentation of routes that honour them.
IF_NONE_MATCH = _header("If-None-Match", "ETags that the caller has; 304 if this is one of them.")
RANGE = _header("Range", "One range of bytes, such as `bytes=0-1023`.")
IF_RANGE = _header("If-Range", "Send the range only if this is the current ETag; else all bytes.")


def conditional(
    etag: str, size: int, read: Callable[[int, int], bytes | Iterator[bytes]], content_type: str
) -> Response:
    """Answer a GET or HEAD for `size` bytes with a strong ETag.

    `read(start, stop)` returns the bytes; it is called only if some are sent.
    Raises 412 and 416 as werkzeug's exceptions.
    """
    if is_current(etag):
        return not_modified(etag)
    wanted = _range(etag, size)
    start, stop = wanted or (0, size)
    body = b"" if request.method == "HEAD" else read(start, stop)
    response = Response(body, 206 if wanted else 200, content_type=content_type)
    response.content_length = stop - start
    response.set_etag(etag)
    response.accept_ranges = "bytes"
    if wanted:
        response.content_range.set(start, stop, size)
    return response


def conditional_bytes(content: bytes, etag: str, content_type: str) -> Response:
    """Answer a GET or HEAD for bytes in memory, as `conditional` does."""
    return conditional(etag, len(content), lambda start, stop: content[start:stop], content_type)


def is_current(etag: str, *, weak: bool = False) -> bool:
    """Say whether the caller has this version already (If-None-Match, compared weakly).

    Raises werkzeug's PreconditionFailed when If-Match names another version.
    """
    if request.if_match and not (
        request.if_match.star_tag or (not weak and request.if_match.contains(etag))
    ):
        raise PreconditionFailed
    return request.if_none_match.contains_weak(etag)


def not_modified(etag: str, *, weak: bool = False) -> Response:
    """Answer 304: the caller has this version."""
    response = Response(status=304)
    response.set_etag(etag, weak)
    return response


def _range(etag: str, size: int) -> tuple[int, int] | None:
    """Return the bytes asked for, as (start, stop); None for all of them."""
    match = _RANGE.fullmatch(request.headers.get("Range", "").strip())
    only_if = request.headers.get("If-Range")
    if match is None or request.method != "GET" or only_if not in (None, f'"{etag}"'):
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        start, stop = max(size - int(suffix), 0), size
    else:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise RequestedRangeNotSatisfiable(size)
    return start, stop
