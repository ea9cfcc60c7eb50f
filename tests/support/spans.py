"""Spans and requests as exporters send them, made with OpenTelemetry's own protobuf classes."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

# 2026-01-31T12:00:00Z, in nanoseconds.
NOON = 1_769_860_800_000_000_000
SECOND = 1_000_000_000

AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "refund-desk"}
TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "refund"}

# A trace with so many bytes that wait for assembly.
STAGED = """
INSERT INTO traces (tenant_id, pin, trace_id, id, status, staged_bytes)
VALUES (:tenant, :tenant, decode(repeat('07', 16), 'hex'), gen_random_uuid(), 'staged', :bytes)
"""


def value(found: Any) -> AnyValue:
    """Write a value of Python as OTLP's."""
    if isinstance(found, bool):
        return AnyValue(bool_value=found)
    if isinstance(found, int):
        return AnyValue(int_value=found)
    if isinstance(found, float):
        return AnyValue(double_value=found)
    if isinstance(found, list):
        made = AnyValue()
        made.array_value.values.extend(map(value, found))
        return made
    if isinstance(found, dict):
        made = AnyValue()
        made.kvlist_value.values.extend(pairs(found))
        return made
    return AnyValue(string_value=found)


def pairs(found: Mapping[str, Any]) -> list[KeyValue]:
    """Write attributes."""
    return [KeyValue(key=name, value=value(each)) for name, each in found.items()]


def span(
    number: int,
    parent: int | None = None,
    *,
    trace: int = 1,
    name: str = "",
    attributes: Mapping[str, Any] = AGENT,
    start: int = 0,
    seconds: int | None = 1,
    events: Sequence[tuple[str, Mapping[str, Any]]] = (),
    **members: Any,
) -> Span:
    """Make a span; `start` in seconds after noon, `seconds` None for one that has not ended."""
    began = NOON + start * SECOND
    made = Span(
        trace_id=trace.to_bytes(16, "big"),
        span_id=number.to_bytes(8, "big"),
        parent_span_id=b"" if parent is None else parent.to_bytes(8, "big"),
        name=name or f"span {number}",
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=began,
        end_time_unix_nano=0 if seconds is None else began + seconds * SECOND,
        attributes=pairs(attributes),
    )
    for event_name, of in events:
        made.events.add(name=event_name, time_unix_nano=began, attributes=pairs(of))
    for member, found in members.items():
        if isinstance(found, list):
            getattr(made, member).extend(found)
        else:
            setattr(made, member, found)
    return made


def request(*spans: Span, resource: Mapping[str, Any] | None = None) -> ExportTraceServiceRequest:
    """Make a request of one resource and one scope."""
    made = ExportTraceServiceRequest()
    of_resource = made.resource_spans.add()
    of_resource.resource.attributes.extend(pairs(resource or {"service.name": "desk"}))
    scope = of_resource.scope_spans.add()
    scope.scope.name = "tests"
    scope.spans.extend(spans)
    return made


def as_json(sent: ExportTraceServiceRequest) -> Any:
    """Write a request in OTLP's JSON: ids in hex, enums as numbers."""
    return _in_hex(MessageToDict(sent, use_integers_for_enums=True))


def _in_hex(found: Any) -> Any:
    if isinstance(found, list):
        return [_in_hex(each) for each in found]
    if not isinstance(found, dict):
        return found
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        name: base64.b64decode(each).hex() if name in ids else _in_hex(each)
        for name, each in found.items()
    }
