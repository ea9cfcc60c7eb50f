"""Content codings of request bodies (RFC 9110 section 8.4): gzip, on the routes that take it.

A body is unpacked up to a limit, so a bomb costs no more than that.
"""

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from flask_smorest import Blueprint

_View = TypeVar("_View", bound=Callable[..., Any])

GZIP = ("gzip", "x-gzip")
"""The names of the coding: RFC 9110 section 8.4.1.3 has both mean the same."""

_HEADER = {
    "in": "header",
    "name": "Content-Encoding",
    "required": False,
    "description": "`gzip` for a compressed body: one member (RFC 1952). The limit of the body "
    "holds for what it unpacks to.",
    "schema": {"type": "string", "enum": ["gzip", "identity"]},
}
# zlib's name for a window of 32 KiB with gzip's header and trailer.
_WINDOW = 31


class NotGzip(Exception):
    """The bytes are not one whole gzip member; the text says why."""


class TooLong(Exception):
    """The bytes unpack to more than may be."""


def takes_gzip(view: _View) -> _View:
    """Let the view's body come with `Content-Encoding: gzip`, and document that."""
    view.takes_gzip = True  # type: ignore[attr-defined]  # read back by parsing.body
    documented: _View = Blueprint.doc(parameters=[_HEADER])(view)
    return documented


def gunzip(packed: bytes, most: int) -> bytes:
    """Return what one gzip member holds; raises `NotGzip`, and `TooLong` beyond `most` bytes.

    A second member is refused: each costs more than its bytes, and no HTTP client sends any.
    """
    reader = zlib.decompressobj(_WINDOW)
    try:
        content = reader.decompress(packed, most + 1)
    except zlib.error as error:
        raise NotGzip(str(error)) from None
    if len(content) > most:
        raise TooLong
    if not reader.eof:
        raise NotGzip("It ends too early.")
    if reader.unused_data:
        raise NotGzip("Something follows the first gzip member.")
    return content
