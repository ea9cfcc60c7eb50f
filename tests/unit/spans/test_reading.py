"""Both encodings give the same span, and reads of protobuf are held to protobuf's own decoder."""

import base64
import json
import math
import struct
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from app.evidence.spans import export, otlp_json, protobuf, span
from app.evidence.spans.protobuf import Malformed
from app.evidence.spans.span import Event, Link, NeverTaken, Span
from app.lib import canonical_json
from tests.support.spans import as_json, pairs, request
from tests.support.spans import span as make_span

# What protobuf's text may hold; surrogates have no UTF-8.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | TEXTS
    | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ATTRIBUTES = st.dictionaries(TEXTS, VALUES, max_size=4)


def value(found: Any) -> AnyValue:
    made = AnyValue()
    if isinstance(found, bool):
        made.bool_value = found
    elif isinstance(found, int):
        made.int_value = found
    elif isinstance(found, float):
        made.double_value = found
    elif isinstance(found, str):
        made.string_value = found
    elif isinstance(found, bytes):
        made.bytes_value = found
    elif isinstance(found, list):
        made.array_value.SetInParent()
        made.array_value.values.extend(map(value, found))
    elif isinstance(found, dict):
        made.kvlist_value.SetInParent()
        made.kvlist_value.values.extend(key_values(found))
    return made


def key_values(found: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=name, value=value(each)) for name, each in found.items()]


@st.composite
def spans(draw: st.DrawFn) -> trace_pb2.Span:
    made = trace_pb2.Span(
        trace_id=draw(st.binary(min_size=16, max_size=16)),
        span_id=draw(st.binary(min_size=8, max_size=8)),
        parent_span_id=draw(st.sampled_from([b"", bytes(8), b"\1" * 8])),
        name=draw(TEXTS),
        flags=draw(st.sampled_from([0, 1, 0x101, 0x301])),
        start_time_unix_nano=draw(st.integers(0, 2**64 - 1)),
        end_time_unix_nano=draw(st.integers(0, 2**64 - 1)),
        trace_state=draw(TEXTS),
        attributes=key_values(draw(ATTRIBUTES)),
    )
    # mypy knows enums by their values' own type.
    setattr(made, "kind", draw(st.integers(0, 5)))  # noqa: B010
    if draw(st.booleans()):
        setattr(made.status, "code", draw(st.integers(0, 2)))  # noqa: B010
        made.status.message = draw(TEXTS)
    for _ in range(draw(st.integers(0, 2))):
        of = key_values(draw(ATTRIBUTES))
        made.events.add(name=draw(TEXTS), time_unix_nano=draw(st.integers(0, 9)), attributes=of)
        ids = {"trace_id": b"\2" * 16, "span_id": b"\3" * 8}
        made.links.add(**ids, attributes=key_values(draw(ATTRIBUTES)))
    return made


def by_protobuf(found: trace_pb2.Span) -> Span:
    """Return what protobuf's decoder has read, as a span."""
    parent = found.parent_span_id
    status = ["unset", "ok", "error"]
    return Span(
        found.trace_id.hex(),
        found.span_id.hex(),
        parent.hex() if parent.strip(b"\0") else "",
        found.flags & 0x300 == 0x300,
        found.name,
        found.kind & 2**64 - 1,
        found.start_time_unix_nano,
        found.end_time_unix_nano,
        status[found.status.code] if 0 <= found.status.code <= 2 else "unset",
        found.status.message,
        attributes(found.attributes),
        [
            Event(each.name, each.time_unix_nano, attributes(each.attributes))
            for each in found.events
        ],
        [
            Link(each.trace_id.hex(), each.span_id.hex(), attributes(each.attributes))
            for each in found.links
        ],
    )


def attributes(found: Any, level: int = 0) -> dict[str, Any]:
    return {each.key: plain(each.value, level) for each in found}


def plain(found: AnyValue, level: int) -> Any:
    kind = found.WhichOneof("value")
    if kind in ("array_value", "kvlist_value") and level == span.MAX_LEVELS:
        return span.TOO_DEEP
    if kind == "array_value":
        return [plain(each, level + 1) for each in found.array_value.values]
    if kind == "kvlist_value":
        return attributes(found.kvlist_value.values, level + 1)
    if kind == "bytes_value":
        return base64.b64encode(found.bytes_value).decode()
    if kind in ("int_value", "double_value"):
        return span.number(getattr(found, kind))
    return None if kind is None else getattr(found, kind, None)


@given(spans())
def test_a_span_is_read_as_protobuf_reads_it(made: trace_pb2.Span) -> None:
    found = protobuf.read_span(made.SerializeToString())
    assert found == by_protobuf(made)
    # Whatever it holds can be signed.
    canonical_json.dumps(found.attributes)


@given(spans())
def test_both_encodings_give_the_same_span(made: trace_pb2.Span) -> None:
    sent = as_json(request(made))
    (of_resource,) = sent["resourceSpans"]
    (found,) = of_resource["scopeSpans"][0].get("spans", [{}])
    assert otlp_json.read_span(found) == protobuf.read_span(made.SerializeToString())


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 10**6), st.sampled_from(["set", "insert", "drop"]), st.integers(0, 255)
    ),
    max_size=4,
)


@given(spans(), CHANGES)
@example(make_span(1), [(0, "set", 0x0B)])
def test_what_protobuf_refuses_or_takes_is_refused_or_taken(
    made: trace_pb2.Span, changes: list[tuple[int, str, int]]
) -> None:
    raw = bytearray(made.SerializeToString())
    for place, what, byte in changes:
        at = place % (len(raw) + 1)
        raw[at : at + (what != "insert")] = b"" if what == "drop" else bytes([byte])
    try:
        expected = by_protobuf(trace_pb2.Span.FromString(bytes(raw)))
    except DecodeError:
        expected = None
    found, refused = None, ""
    try:
        found = protobuf.read_span(bytes(raw))
    except Malformed as error:
        refused = str(error)
    if found is None:
        # Groups, which no message of OTLP ever had.
        assert expected is None or "wire type" in refused
        return
    if expected is None:
        # It takes text that is not UTF-8, and does not look into what it leaves out.
        return
    assert _without_kind(found) == _without_kind(expected)


def _without_kind(found: Span) -> Span:
    # An enum has 32 bits, whatever number stands there.
    return found._replace(kind=0)


@given(st.binary(max_size=64))
def test_no_bytes_do_more_than_be_refused(raw: bytes) -> None:
    for is_json in (False, True):
        try:
            export.read(raw, is_json=is_json)
        except Malformed:
            continue


@given(st.integers(0, 2**64 - 1))
def test_numbers_are_written_and_read(number: int) -> None:
    raw = b"\x08" + protobuf.varint(number)
    assert protobuf.fields(raw, 0, len(raw)) == [(8, number, 0)]


def test_values_that_canonical_json_cannot_hold_become_text() -> None:
    of = {"big": 2**53, "less": -(2**63), "nan": math.nan, "inf": -math.inf, "double": 2.0**60}
    found = protobuf.read_span(make_span(1, attributes=of).SerializeToString()).attributes
    assert found == {
        "big": "9007199254740992",
        "less": "-9223372036854775808",
        "nan": "NaN",
        "inf": "-Infinity",
        "double": "1.152921504606847e+18",
    }
    assert canonical_json.parse(canonical_json.dumps(found)) == found


def test_odd_text_is_taken() -> None:
    raw = make_span(1, name="n").SerializeToString().replace(b"\x2a\x01n", b"\x2a\x03\xed\xa0\x80")
    assert protobuf.read_span(raw).name == "\ufffd" * 3
    told = {"key": "k\ud800", "value": {"stringValue": "\udfff!"}}
    found = otlp_json.read_span({"traceId": "01", "attributes": [told], "name": "\ud800"})
    assert (found.name, found.attributes) == ("\ufffd", {"k\ufffd": "\ufffd!"})


def test_a_deep_value_ends_in_words() -> None:
    # Protobuf's own classes write no more than a hundred levels.
    deep = b"\x0a\x06bottom"
    for _ in range(200):
        deep = b"".join((b"\x0a", protobuf.varint(len(deep)), deep))
        deep = b"".join((b"\x2a", protobuf.varint(len(deep)), deep))
    pair = b"".join((b"\x0a\x04deep\x12", protobuf.varint(len(deep)), deep))
    found = protobuf.read_span(b"".join((b"\x4a", protobuf.varint(len(pair)), pair)))
    text = json.dumps(found.attributes["deep"])
    assert text == "[" * 64 + json.dumps(span.TOO_DEEP) + "]" * 64


GOOD = {"traceId": "1" * 32, "spanId": "2" * 16, "startTimeUnixNano": "1"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"traceId": "12"}, "the trace id has 1 bytes and not 16"),
        ({"traceId": "0" * 32}, "the trace id is all zeros"),
        ({"spanId": ""}, "the span id has 0 bytes and not 8"),
        ({"spanId": "z" * 16}, "spanId is not in hex"),
        ({"parentSpanId": "12"}, "the parent's id has 1 bytes and not 8"),
        ({"startTimeUnixNano": 0}, "the span has no start and no end"),
        ({"startTimeUnixNano": "-1"}, "the span's start is before 1970"),
        ({"endTimeUnixNano": str(2**63)}, "the span's end is after 2099"),
        ({"startTimeUnixNano": "soon"}, "startTimeUnixNano is no integer"),
        ({"startTimeUnixNano": True}, "startTimeUnixNano is no integer"),
        ({"name": 7}, "name is no string"),
        ({"attributes": {}}, "attributes is no array"),
        ({"attributes": ["a"]}, "attributes are no array of objects"),
        ({"events": [1]}, "events holds what is no object"),
        (
            {"attributes": [{}] * 10_001},
            "the span has more than 10000 attributes, events and links",
        ),
    ],
)
def test_a_span_that_can_never_be_taken_is_told_why(change: dict[str, Any], reason: str) -> None:
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [GOOD, {**GOOD, **change}]}]}]}
    found = export.read(json.dumps(body).encode(), is_json=True)
    assert [each.reason for each in found.rejected] == [reason]
    assert len(found.spans) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"resourceSpans": ' + b"[" * 100_000,
        b"[" + b"{}," * 1_000_001 + b"{}]",
        b'{"resourceSpans": {}}',
        b'{"resourceSpans": [1]}',
        b'{"resourceSpans": [{"resource": []}]}',
        b'{"resourceSpans": [{"resource": {"attributes": 1}}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [[]]}]}]}',
        b"1" * 5_000,
        b'{"a": ' + b"1" * 5_000 + b"}",
    ],
)
def test_json_that_is_no_request_is_refused_as_a_whole(body: bytes) -> None:
    with pytest.raises(Malformed):
        export.read(body, is_json=True)


def test_bombs_cost_no_more_than_their_bytes() -> None:
    # Empty attributes, two bytes each; and as many empty spans.
    bomb = make_span(1).SerializeToString() + b"\x4a\x00" * 50_000
    with pytest.raises(NeverTaken, match="more than 10000"):
        protobuf.read_span(bomb)
    scope = b"\x12\x00" * 200_000
    of_resource = b"\x12" + protobuf.varint(len(scope)) + scope
    body = b"\x0a" + protobuf.varint(len(of_resource)) + of_resource
    with pytest.raises(Malformed, match="more than 100000 fields"):
        export.read(body, is_json=False)


def test_a_request_is_staged_as_it_came() -> None:
    made = request(make_span(1), resource={"service.name": "desk", "n": 1})
    for is_json, body in (
        (False, made.SerializeToString()),
        (True, json.dumps(as_json(made)).encode()),
    ):
        found = export.read(body, is_json=is_json)
        (staged,) = found.spans
        assert export.read_span(staged.body) == by_protobuf(make_span(1))
        assert export.read_resource(found.resources[staged.resource]) == {
            "service.name": "desk",
            "n": 1,
        }
        assert found.services == ["desk"]
        assert (staged.is_root, staged.ended) == (True, True)


def test_answers_are_what_exporters_read() -> None:
    assert export.answer(0, "", is_json=False) == b""
    partial = ExportTraceServiceResponse.FromString(export.answer(3, "why not", is_json=False))
    assert partial.partial_success.rejected_spans == 3
    assert partial.partial_success.error_message == "why not"
    said = json.loads(export.answer(3, "why not", is_json=True))
    assert said == {"partialSuccess": {"rejectedSpans": "3", "errorMessage": "why not"}}
    # google.rpc.Status has the same two fields.
    status = ExportTracePartialSuccess.FromString(export.status(14, "busy", is_json=False))
    assert (status.rejected_spans, status.error_message) == (14, "busy")


def test_fields_of_another_wire_type_are_left_out() -> None:
    # A name as a number, a start as text.
    raw = struct.pack("<BBBB", 0x28, 7, 0x3A, 0)
    found = protobuf.read_span(raw)
    assert (found.name, found.started) == ("", 0)
    assert ExportTraceServiceRequest.FromString(b"") == ExportTraceServiceRequest()
    assert pairs({}) == []
