"""Spans and resources of OTLP in JSON: ids in hex, enums as numbers, 64-bit integers as text."""

import json
import re
from typing import Any

from app.evidence.spans import span
from app.evidence.spans.protobuf import Malformed
from app.evidence.spans.span import Event, Link, NeverTaken, Span
from app.lib.canonical_json import JSON

MOST_BRACKETS = 1_000_000
"""The most objects and arrays of a document: each takes memory, however short it is written."""

_HEX = re.compile("[0-9a-fA-F]*", re.ASCII)
_DECIMAL = re.compile("-?[0-9]{1,20}", re.ASCII)


def parse(raw: bytes) -> dict[str, Any]:
    """Read one JSON object, duplicate names, NaN and all; raises `Malformed`."""
    if raw.count(b"[") + raw.count(b"{") > MOST_BRACKETS:
        raise Malformed(f"the document has more than {MOST_BRACKETS} objects and arrays")
    try:
        found = json.loads(raw, object_pairs_hook=_as_object)
    except RecursionError:
        raise Malformed("the document is nested too deep") from None
    except ValueError as error:
        raise Malformed(f"this is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Malformed("this is no JSON object")
    return found


def _as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A function of Python's: where it is called other threads get their turn.
    return dict(pairs)


def read_resource(found: dict[str, Any]) -> dict[str, JSON]:
    """Return the attributes of a resource; raises `NeverTaken` for a member of the wrong type."""
    return _attributes(found.get("attributes"))


def read_span(found: dict[str, Any]) -> Span:
    """Read a span of JSON; raises `NeverTaken` for a member of the wrong type."""
    status = _member(found, "status", dict, {})
    attributes = _member(found, "attributes", list, [])
    events = _objects(found, "events")
    links = _objects(found, "links")
    span.bounded(len(attributes) + len(events) + len(links))
    parent_id = _hex(found, "parentSpanId")
    return Span(
        _hex(found, "traceId"),
        _hex(found, "spanId"),
        parent_id if parent_id.strip("0") else "",
        span.is_remote(_integer(found, "flags")),
        _text(found, "name"),
        _integer(found, "kind"),
        _integer(found, "startTimeUnixNano"),
        _integer(found, "endTimeUnixNano"),
        span.status_name(_integer(status, "code")),
        _text(status, "message"),
        _attributes(attributes),
        [
            Event(
                _text(event, "name"),
                _integer(event, "timeUnixNano"),
                _attributes(event.get("attributes")),
            )
            for event in events
        ],
        [
            Link(
                _hex(link, "traceId"),
                _hex(link, "spanId"),
                _attributes(link.get("attributes")),
            )
            for link in links
        ],
    )


def _member(found: dict[str, Any], name: str, kind: type, absent: Any) -> Any:
    value = found.get(name)
    if value is None:
        return absent
    if not isinstance(value, kind):
        raise NeverTaken(f"{name} is no {'object' if kind is dict else 'array'}")
    return value


def _objects(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    values: list[dict[str, Any]] = _member(found, name, list, [])
    if not all(isinstance(each, dict) for each in values):
        raise NeverTaken(f"{name} holds what is no object")
    return values


def _text(found: dict[str, Any], name: str) -> str:
    value = found.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise NeverTaken(f"{name} is no string")
    return span.clean(value)


def _hex(found: dict[str, Any], name: str) -> str:
    value = _text(found, name)
    if not _HEX.fullmatch(value):
        raise NeverTaken(f"{name} is not in hex")
    return value.lower()


def _integer(found: dict[str, Any], name: str) -> int:
    value = found.get(name, 0)
    if value is None:
        return 0
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return int(value)
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not int:
        raise NeverTaken(f"{name} is no integer")
    return value


def _attributes(found: Any, level: int = 0) -> dict[str, JSON]:
    if found is None:
        return {}
    if not (isinstance(found, list) and all(isinstance(each, dict) for each in found)):
        raise NeverTaken("attributes are no array of objects")
    return {_text(each, "key"): _value(each.get("value"), level) for each in found}


def _value(found: Any, level: int) -> JSON:
    """Read an `AnyValue`: the first that it has of these, however many it has."""
    if not isinstance(found, dict):
        return None
    name = next((each for each in _VALUES if found.get(each) is not None), None)
    if name == "intValue":
        return span.number(_integer(found, name))
    if name == "boolValue":
        return found[name] in (True, "true")
    if name == "doubleValue" and type(found[name]) in (int, float):
        return span.number(found[name])
    if name in ("arrayValue", "kvlistValue"):
        if level >= span.MAX_LEVELS:
            return span.TOO_DEEP
        within = _member(found, name, dict, {})
        if name == "kvlistValue":
            return _attributes(within.get("values"), level + 1)
        return [_value(each, level + 1) for each in _member(within, "values", list, [])]
    # NaN and the infinities are text in this mapping already.
    return None if name is None else _text(found, name)


_VALUES = (
    *("stringValue", "intValue", "boolValue", "doubleValue", "arrayValue", "kvlistValue"),
    "bytesValue",
)
