"""Spans and resources of OTLP in protobuf.

A tag is eight times the number of a field, plus its wire type. Fields that are not known are left
out, as is what has another wire type than its field.
"""

import base64
from collections.abc import Iterable
from struct import pack, unpack

from app.evidence.spans import span, wire
from app.evidence.spans.span import Event, Link, Span
from app.lib.canonical_json import JSON

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
_NONE: wire.Field = (0, 0, 0)


def read_span(raw: bytes) -> Span:
    """Read a span; raises `Malformed`, and `NeverTaken` for one of too many parts."""
    attributes, events, links = [], [], []
    single: dict[int, wire.Field] = {}
    status = b""
    for field in wire.fields(raw, 0, len(raw)):
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
    return _attributes(raw, [each for each in wire.fields(raw, 0, len(raw)) if each[0] == 10])


def _hex(raw: bytes, single: dict[int, wire.Field], tag: int) -> str:
    _, at, end = single.get(tag, _NONE)
    return raw[at:end].hex()


def _status(raw: bytes) -> tuple[int, str]:
    code, message = 0, b""
    for tag, at, end in wire.fields(raw, 0, len(raw)):
        if tag == 18:
            message = raw[at:end]
        elif tag == 24:
            code = at
    return code, _text(message)


def _event(raw: bytes, start: int, stop: int) -> Event:
    name, moment, attributes = b"", 0, []
    for field in wire.fields(raw, start, stop):
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
    for field in wire.fields(raw, start, stop):
        tag, at, end = field
        if tag == 10:
            trace_id = raw[at:end]
        elif tag == 18:
            span_id = raw[at:end]
        elif tag == 34:
            attributes.append(field)
    return Link(trace_id.hex(), span_id.hex(), _attributes(raw, attributes))


def _attributes(raw: bytes, found: Iterable[wire.Field], level: int = 0) -> dict[str, JSON]:
    """Read `KeyValue` messages; the last of a name counts."""
    attributes: dict[str, JSON] = {}
    for _, start, stop in found:
        name, value = b"", b""
        for tag, at, end in wire.fields(raw, start, stop):
            if tag == 10:
                name = raw[at:end]
            elif tag == 18:
                value = value + raw[at:end] if value else raw[at:end]
        attributes[_text(name)] = _value(value, level)
    return attributes


def _value(raw: bytes, level: int) -> JSON:
    """Read an `AnyValue`: of several values the last, and of a message all that stands in a row."""
    kind, number_, whole = 0, 0, b""
    for tag, at, end in wire.fields(raw, 0, len(raw)):
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
    found = [each for each in wire.fields(raw, 0, len(raw)) if each[0] == 10]
    if kind == 50:
        return _attributes(raw, found, level)
    return [_value(raw[at:end], level) for _, at, end in found]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
