"""Answers: JSON, conditional requests and ranges (RFC 9110 sections 13 and 14).

werkzeug parses ETag, If-Match and Range; the decisions are made here, because werkzeug's differ
from the RFC in precedence (13.2.2), weak If-Range (13.1.5), unknown range units (14.2) and suffix
ranges (14.1.2).
"""

import json
import re
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from threading import Lock
from typing import Any

from flask import Response, request
from werkzeug.exceptions import PreconditionFailed, RequestedRangeNotSatisfiable

# One range; a request for several gets the whole representation, as a server may (14.2).
_RANGE = re.compile(
    r"bytes=[ \t]*(?:([0-9]{1,19})-([0-9]{0,19})|-([0-9]{1,19}))", re.IGNORECASE | re.ASCII
)
MEDIA_TYPE = "application/json"
# The newest renderings are cached for so long.
KEPT_SECONDS = 60.0
_FASTEST = 1
_PIECE = 64 * 1024


def answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Write a JSON-ready value as the answer to this request."""
    return answer_written(encode(body), status, headers)


def answer_written(
    body: bytes, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with JSON that is written already."""
    return Response(body, status, dict(headers or {}), content_type=MEDIA_TYPE)


def no_content() -> Response:
    """Answer 204, without a body."""
    answered = Response(status=204)
    del answered.headers["Content-Type"]
    return answered


def open_to_all(response: Response) -> Response:
    """Let pages of any origin read it: it is public, and no cookie or key changes an answer."""
    response.headers["Access-Control-Allow-Origin"] = "*"
    response.headers["Access-Control-Expose-Headers"] = "ETag, Retry-After"
    return response


def encode(body: Any) -> bytes:
    """Write a JSON-ready value as compact UTF-8."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


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


class Renderings:
    """A cache of the newest renderings, at most `most` bytes compressed; safe for threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._size = 0

    def get(self, etag: str) -> Iterator[bytes] | None:
        """Return the rendering cached under a strong ETag, in pieces, or None."""
        self._drop_old()
        with self._lock:
            found = self._kept.get(etag)
        return None if found is None else _pieces(found[1])

    def made(self, etag: str, parts: Iterator[bytes]) -> tuple[Iterator[bytes], bool]:
        """Make a rendering and cache it; return it in pieces, and whether it is complete.

        A rendering too large for the cache is completed while it is read.
        """
        press = zlib.compressobj(_FASTEST)
        pressed: list[bytes] = []
        size = 0
        for part in parts:
            pressed.append(press.compress(part))
            size += len(pressed[-1])
            if size > self._most // 2:
                pressed.append(press.flush(zlib.Z_SYNC_FLUSH))
                return chain(_pieces(b"".join(pressed)), parts), False
        pressed.append(press.flush())
        whole = b"".join(pressed)
        self._keep(etag, whole)
        return _pieces(whole), True

    def _drop_old(self) -> None:
        now = time.monotonic()
        with self._lock:
            while self._kept:
                etag, (until, _) = next(iter(self._kept.items()))
                if until > now:
                    return
                self._drop(etag)

    def _keep(self, etag: str, whole: bytes) -> None:
        with self._lock:
            if etag in self._kept:
                self._drop(etag)
            self._kept[etag] = (time.monotonic() + KEPT_SECONDS, whole)
            self._size += len(whole)
            while self._size > self._most:
                self._drop(next(iter(self._kept)))

    def _drop(self, etag: str) -> None:
        self._size -= len(self._kept.pop(etag)[1])


def _pieces(pressed: bytes) -> Iterator[bytes]:
    press = zlib.decompressobj()
    rest = pressed
    while rest:
        if piece := press.decompress(rest, _PIECE):
            yield piece
        rest = press.unconsumed_tail
    yield press.flush()
