"""Spans and resources of OTLP in protobuf, read by Python alone.

Held to protobuf's own decoder by fuzzing. Unlike that one it gives way to other threads, uses no
memory beyond the values, and takes text that is not UTF-8: exporters send such text. A tag is eight
times the number of a field, plus its wire type. Fields that are not known are left out, as is what
has another wire type than its field.
https://protobuf.dev/programming-guides/encoding/
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


_TRACE_ID, _SPAN_ID, _PARENT_ID, _NAME, _KIND, _START, _END, _FLAGS = (
    10,
    18,
    34,
    42,
    48,
    57,
    65,
    133,
)
_ATTRIBUTES, _EVENTS, _LINKS, _STATUS = 74, 90, 106, 122
_NONE: Field = (0, 0, 0)


def read_span(raw: bytes) -> Span:
    """Read a span; raises `Malformed`, and `NeverTaken` for one of too many parts."""
    attributes, events, links = [], [], []
    single: dict[int, Field] = {}
    status = b""
    for field in fields(raw, 0, len(raw)):
        tag = field[0]
        if tag == _ATTRIBUTES:
            attributes.append(field)
        elif tag == _EVENTS:
            events.append(field)
        elif tag == _LINKS:
            links.append(field)
        elif tag == _STATUS:
            # Of a message that comes twice protobuf merges the two, as if their bytes were one's.
            status += raw[field[1] : field[2]]
        else:
            single[tag] = field
    span.bounded(len(attributes) + len(events) + len(links))
    _, at, end = single.get(_PARENT_ID, _NONE)
    parent_id = raw[at:end]
    code, message = _status(status)
    _, name_at, name_end = single.get(_NAME, _NONE)
    return Span(
        _hex(raw, single, _TRACE_ID),
        _hex(raw, single, _SPAN_ID),
        parent_id.hex() if parent_id.strip(b"\0") else "",
        span.is_remote(single.get(_FLAGS, _NONE)[1]),
        _text(raw[name_at:name_end]),
        single.get(_KIND, _NONE)[1],
        single.get(_START, _NONE)[1],
        single.get(_END, _NONE)[1],
        span.status_name(code),
        message,
        _attributes(raw, attributes),
        [_event(raw, at, end) for _, at, end in events],
        [_link(raw, at, end) for _, at, end in links],
    )


def read_resource(raw: bytes) -> dict[str, JSON]:
    """Return the attributes of a resource; raises `Malformed`."""
    return _attributes(raw, [each for each in fields(raw, 0, len(raw)) if each[0] == 10])


def _hex(raw: bytes, single: dict[int, Field], tag: int) -> str:
    _, at, end = single.get(tag, _NONE)
    return raw[at:end].hex()


def _status(raw: bytes) -> tuple[int, str]:
    code, message = 0, b""
    for tag, at, end in fields(raw, 0, len(raw)):
        if tag == 18:
            message = raw[at:end]
        elif tag == 24:
            code = at
    return code, _text(message)


def _event(raw: bytes, start: int, stop: int) -> Event:
    name, moment, attributes = b"", 0, []
    for field in fields(raw, start, stop):
        tag, at, end = field
        if tag == 9:
            moment = at
        elif tag == 18:
            name = raw[at:end]
        elif tag == 26:
            attributes.append(field)
    return Event(_text(name), moment, _attributes(raw, attributes))


def _link(raw: bytes, start: int, stop: int) -> Link:
    trace_id = span_id = b""
    attributes = []
    for field in fields(raw, start, stop):
        tag, at, end = field
        if tag == 10:
            trace_id = raw[at:end]
        elif tag == 18:
            span_id = raw[at:end]
        elif tag == 34:
            attributes.append(field)
    return Link(trace_id.hex(), span_id.hex(), _attributes(raw, attributes))


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
        return _nested(kind, whole, level + 1)
    if kind == 16:
        return number_ != 0
    if kind == 24:
        return span.number(number_ - (1 << 64) if number_ >> 63 else number_)
    if kind == 33:
        (double,) = unpack("<d", pack("<Q", number_))
        return span.number(double)
    return base64.b64encode(whole).decode() if kind == 58 else None


def _nested(kind: int, raw: bytes, level: int) -> JSON:
    if level > span.MAX_LEVELS:
        return span.TOO_DEEP
    found = [each for each in fields(raw, 0, len(raw)) if each[0] == 10]
    if kind == 50:
        return _attributes(raw, found, level)
    return [_value(raw[at:end], level) for _, at, end in found]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
