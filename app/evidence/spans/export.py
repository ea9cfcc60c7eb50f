"""A request of an exporter (OTLP/HTTP), its spans one by one, and the answers it gets.

A span is staged as it came: protobuf's bytes, or JSON text, whose first byte `{` begins no message
of protobuf.
https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from app.evidence.spans import otlp_json, protobuf, span
from app.evidence.spans.protobuf import Malformed
from app.evidence.spans.span import NeverTaken, Span
from app.lib import canonical_json
from app.lib.canonical_json import JSON

PROTOBUF = "application/x-protobuf"
JSON_TYPE = "application/json"

MOST_SPANS = 65_536
"""The most spans of a request; SDKs send 512 at once, collectors 8,192."""

MOST_BYTES = 4 * 1024 * 1024
"""The largest span: it has to fit into a record's bundle."""

Refuse = Callable[[Span, dict[str, JSON]], None]
"""Raises `NeverTaken` for a span, with its resource's attributes, that this caller may not send."""


class Arrived(NamedTuple):
    """A span to stage: ids in hex, its bytes, and its resource's place among the request's."""

    trace_id: str
    span_id: str
    is_root: bool
    ended: bool
    started: int
    body: bytes
    resource: int


class Rejected(NamedTuple):
    """A span that can never be taken; its trace's id is empty when that is the reason."""

    trace_id: str
    reason: str


@dataclass
class Request:
    """What an exporter sent: spans to stage with their resources' bytes and services' names."""

    spans: list[Arrived] = field(default_factory=list)
    resources: list[bytes] = field(default_factory=list)
    services: list[str] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)


def read(body: bytes, *, is_json: bool, refuse: Refuse | None = None) -> Request:
    """Take a request apart. Raises `Malformed` when it is none as a whole."""
    request = Request()
    read_one = otlp_json.read_span if is_json else protobuf.read_span
    for attributes, resource, spans in _in_json(body) if is_json else _in_protobuf(body):
        place = len(request.resources)
        request.resources.append(resource)
        request.services.append(str(attributes.get("service.name") or ""))
        for found in spans:
            raw = _compact(found) if is_json else found
            trace_id = ""
            try:
                if len(request.spans) >= MOST_SPANS:
                    raise NeverTaken(f"the request has more than {MOST_SPANS} spans")
                if len(raw) > MOST_BYTES:
                    raise NeverTaken(f"the span has more than {MOST_BYTES // 1024**2} MiB")
                one = read_one(found)
                trace_id = one.trace_id if len(one.trace_id) == 32 else ""
                span.checked(one)
                if refuse is not None:
                    refuse(one, attributes)
            except NeverTaken as error:
                request.rejected.append(Rejected(trace_id, str(error)))
                continue
            request.spans.append(
                Arrived(
                    one.trace_id,
                    one.span_id,
                    one.is_local_root,
                    one.ended > 0,
                    one.started,
                    raw,
                    place,
                )
            )
    return request


_Spans = Iterator[tuple[dict[str, JSON], bytes, list[Any]]]


def _in_protobuf(body: bytes) -> _Spans:
    """Yield each resource's attributes and bytes, with its spans' bytes, of every scope."""
    for tag, start, stop in protobuf.fields(body, 0, len(body)):
        if tag != 10:
            continue
        of_resource = protobuf.fields(body, start, stop)
        resource = b"".join([body[at:end] for tag, at, end in of_resource if tag == 10])
        spans = [
            body[begin:finish]
            for tag, at, end in of_resource
            if tag == 18
            for tag_of_span, begin, finish in protobuf.fields(body, at, end)
            if tag_of_span == 18
        ]
        yield protobuf.read_resource(resource), resource, spans


def _in_json(body: bytes) -> _Spans:
    try:
        for each in _items(otlp_json.parse(body), "resourceSpans"):
            resource = each.get("resource", {})
            if not isinstance(resource, dict):
                raise Malformed("a resource is no object")
            spans = [
                found for scope in _items(each, "scopeSpans") for found in _items(scope, "spans")
            ]
            yield otlp_json.read_resource(resource), _compact(resource), spans
    except NeverTaken as error:
        raise Malformed(f"a resource's {error}") from None


def _items(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = found.get(name)
    if items is None:
        return []
    if not (isinstance(items, list) and all(isinstance(each, dict) for each in items)):
        raise Malformed(f"{name} is no array of objects")
    return items


def _compact(found: Any) -> bytes:
    # Escaped, half of a surrogate pair is kept as it came.
    return json.dumps(found, separators=(",", ":")).encode()


def read_span(raw: bytes) -> Span:
    """Read a span as it was staged; raises `Malformed` or `NeverTaken`."""
    if raw[:1] == b"{":
        return otlp_json.read_span(otlp_json.parse(raw))
    return protobuf.read_span(raw)


def read_resource(raw: bytes) -> dict[str, JSON]:
    """Read the attributes of a resource as it was staged; raises `Malformed` or `NeverTaken`."""
    if raw[:1] == b"{":
        return otlp_json.read_resource(otlp_json.parse(raw))
    return protobuf.read_resource(raw)


def answer(rejected: int, message: str, *, is_json: bool) -> bytes:
    """Write an `ExportTraceServiceResponse`; what was taken as a whole has an empty one."""
    if is_json:
        partial = {"rejectedSpans": str(rejected), "errorMessage": message}
        return canonical_json.dumps({"partialSuccess": partial} if rejected else {})
    if not rejected:
        return b""
    partial_success = b"\x08" + protobuf.varint(rejected) + protobuf.text_field(2, message)
    return b"\x0a" + protobuf.varint(len(partial_success)) + partial_success


def status(code: int, message: str, *, is_json: bool) -> bytes:
    """Write a `google.rpc.Status`."""
    if is_json:
        return canonical_json.dumps({"code": code, "message": message})
    return b"\x08" + protobuf.varint(code) + protobuf.text_field(2, message)
