"""Spans and resources of OTLP in protobuf, read by Python alone.

Held to protobuf's own decoder by fuzzing. It gives way to other threads, uses no memory beyond the
values, and takes text that is not UTF-8. Fields that are not known, or of another type, are left
out.
"""

import base64
import struct
from collections.abc import Iterable
from struct import pack, unpack

from app.evidence.spans import span
from app.evidence.spans.span import Event, Link, Span
from app.lib.canonical_json import JSON

MOST_FIELDS = 100_000
"""The most fields of one message: its size in bytes would let in millions of empty ones."""

_LARGEST = (1 << 64) - 1
_uint64 = struct.Struct("<Q").unpack_from
_uint32 = struct.Struct("<I").unpack_from

Field = tuple[int, int, int]
"""A field: its tag, then where its bytes begin and end, or its number and 0."""


class Malformed(ValueError):
    """The bytes are no message of this kind."""


class TooManyFields(Malformed):
    """A message has more fields than are read."""


def fields(raw: bytes, start: int, end: int) -> list[Field]:
    """Return the fields of the message between two places, in their order.

    A number is as it stands on the wire: unsigned, a double as its bits. Raises `Malformed`.
    """
    found: list[Field] = []
    add = found.append
    at = start
    try:
        for _ in range(MOST_FIELDS + 1):
            if at >= end:
                break
            tag = raw[at]
            at += 1
            if tag > 127:
                tag, at = _varint(raw, at - 1)
            kind = tag & 7
            if kind == 2:
                size = raw[at]
                at += 1
                if size > 127:
                    size, at = _varint(raw, at - 1)
                add((tag, at, at + size))
                at += size
            elif kind == 1:
                add((tag, _uint64(raw, at)[0], 0))
                at += 8
            elif kind == 0:
                number, at = _varint(raw, at)
                add((tag, number, 0))
            elif kind == 5:
                add((tag, _uint32(raw, at)[0], 0))
                at += 4
            else:
                raise Malformed("a field has a wire type that OTLP does not use")
            if not 8 <= tag < 1 << 32:
                raise Malformed("a field has a number that no field can have")
        else:
            raise TooManyFields(f"a message has more than {MOST_FIELDS} fields")
    except (IndexError, struct.error):
        at = end + 1
    if at != end:
        raise Malformed("a message ends before its last field does")
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 64 bits and the place behind it."""
    number = raw[at]
    at += 1
    if number < 128:
        return number, at
    number &= 127
    for shift in range(7, 70, 7):
        byte = raw[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number > _LARGEST:
                break
            return number, at
    raise Malformed("a number has more than 64 bits")


def varint(number: int) -> bytes:
    """Write a number that is not negative."""
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def text_field(number: int, text: str) -> bytes:
    """Write a field of text; of empty text nothing, as proto3 leaves it out."""
    raw = text.encode()
    return varint(number << 3 | 2) + varint(len(raw)) + raw if raw else b""


_TRACE_ID, _SPAN_ID, _PARENT_ID, _NAME = 10, 18, 34, 42
_KIND, _START, _END, _FLAGS = 48, 57, 65, 133
_ATTRIBUTES, _EVENTS, _LINKS, _STATUS = 74, 90, 106, 122


class _Message:
    """A message taken apart: its fields by their tags."""

    def __init__(self, raw: bytes, start: int, stop: int) -> None:
        self._raw = raw
        self._fields: dict[int, list[Field]] = {}
        for field in fields(raw, start, stop):
            self._fields.setdefault(field[0], []).append(field)

    def all(self, tag: int) -> list[Field]:
        return self._fields.get(tag, [])

    def number(self, tag: int) -> int:
        return self._fields.get(tag, _ABSENT)[-1][1]

    def bytes(self, tag: int) -> bytes:
        _, at, end = self._fields.get(tag, _ABSENT)[-1]
        return self._raw[at:end]

    def text(self, tag: int) -> str:
        return _text(self.bytes(tag))


_ABSENT: list[Field] = [(0, 0, 0)]


def read_span(raw: bytes) -> Span:
    """Read a span; raises `Malformed`, and `NeverTaken` for one of too many parts."""
    found = _Message(raw, 0, len(raw))
    attributes, events, links = (found.all(tag) for tag in (_ATTRIBUTES, _EVENTS, _LINKS))
    span.bounded(len(attributes) + len(events) + len(links))
    # Of a message that comes twice protobuf merges the two, as if their bytes were one's.
    told = b"".join(raw[at:end] for _, at, end in found.all(_STATUS))
    status = _Message(told, 0, len(told))
    parent_id = found.bytes(_PARENT_ID)
    return Span(
        found.bytes(_TRACE_ID).hex(),
        found.bytes(_SPAN_ID).hex(),
        parent_id.hex() if parent_id.strip(b"\0") else "",
        span.is_remote(found.number(_FLAGS)),
        found.text(_NAME),
        found.number(_KIND),
        found.number(_START),
        found.number(_END),
        span.status_name(status.number(24)),
        status.text(18),
        _attributes(raw, attributes),
        [
            Event(each.text(18), each.number(9), _attributes(raw, each.all(26)))
            for each in (_Message(raw, at, end) for _, at, end in events)
        ],
        [
            Link(each.bytes(10).hex(), each.bytes(18).hex(), _attributes(raw, each.all(34)))
            for each in (_Message(raw, at, end) for _, at, end in links)
        ],
    )


def read_resource(raw: bytes) -> dict[str, JSON]:
    """Return the attributes of a resource; raises `Malformed`."""
    return _attributes(raw, _Message(raw, 0, len(raw)).all(10))


def _attributes(raw: bytes, found: Iterable[Field], level: int = 0) -> dict[str, JSON]:
    """Read `KeyValue` messages; the last of a name counts."""
    attributes: dict[str, JSON] = {}
    for _, start, stop in found:
        name, value = b"", b""
        for tag, at, end in fields(raw, start, stop):
            if tag == 10:
                name = raw[at:end]
            elif tag == 18:
                value = value + raw[at:end] if value else raw[at:end]
        attributes[_text(name)] = _value(value, level)
    return attributes


def _value(raw: bytes, level: int) -> JSON:
    """Read an `AnyValue`: of several values the last, and of a message all that stands in a row."""
    kind, number_, whole = 0, 0, b""
    for tag, at, end in fields(raw, 0, len(raw)):
        if tag in (10, 58):
            kind, whole = tag, raw[at:end]
        elif tag in (42, 50):
            kind, whole = tag, (whole if tag == kind else b"") + raw[at:end]
        elif tag in (16, 24, 33):
            kind, number_ = tag, at
    if kind == 10:
        return _text(whole)
    if kind in (42, 50):
        if level >= span.MAX_LEVELS:
            return span.TOO_DEEP
        inner = _Message(whole, 0, len(whole)).all(10)
        if kind == 50:
            return _attributes(whole, inner, level + 1)
        return [_value(whole[at:end], level + 1) for _, at, end in inner]
    if kind == 16:
        return number_ != 0
    if kind == 24:
        return span.number(number_ - (1 << 64) if number_ >> 63 else number_)
    if kind == 33:
        (double,) = unpack("<d", pack("<Q", number_))
        return span.number(double)
    return base64.b64encode(whole).decode() if kind == 58 else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
