"""A record in OTLP/JSON: `TracesData` and `LogsData`, streamed by step.

The record is the root span, steps are its children, a session is a trace. Ids are parts of a
SHA-256, so the same record gives the same bytes: trace of the session's id, span of `<record
id>:<step index>`, -1 for the record. Logs are in words.
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import cast

from app.evidence import gen_ai
from app.evidence.bundle import Bundle, Event, Record, Step
from app.evidence.streaming import compact, enclosed, in_chunks
from app.evidence.times import unix_nanoseconds
from app.lib import canonical_json
from app.lib.canonical_json import JSON

SERVICE_NAME = "record-service"
ROOT = -1
"""The step index from which the record's own span id is made."""

MAX_LEVELS = 16
"""How deep arrays and objects nest before the rest is written as the text of its JSON.

An object costs three nested messages a level, and protobuf's readers refuse the hundredth.
"""

_UNNAMED = "record.unnamed"
_MAX_FIXED64 = 2**64 - 1
_STATUS_CODES = {"unset": 0, "ok": 1, "error": 2}
_SAMPLED = 1
_INFO = {"severityNumber": 9, "severityText": "INFO"}
_ERROR = {"severityNumber": 17, "severityText": "ERROR"}
# OpenTelemetry's name of an event that tells of an error, and where errors are told in words.
_EXCEPTION = "exception"
_MESSAGES = ("exception.message", "error.message", "message")


def trace_id(session_id: str) -> str:
    """Return the 32 hex digits of a session's trace."""
    return sha256(session_id.encode()).hexdigest()[:32]


def span_id(record_id: str, index: int) -> str:
    """Return the 16 hex digits of the span of a record's step, or of the record itself (ROOT)."""
    return sha256(f"{record_id}:{index}".encode()).hexdigest()[:16]


def write_traces(bundle: Bundle, *, version: str, agent_name: str) -> Iterator[bytes]:
    """Yield a record's `TracesData`, in chunks; `version` is the service's own.

    `agent_name` is the agent's, of which the bundle has the id alone.
    """
    return in_chunks(_document("Spans", "spans", version, _spans(bundle, agent_name)))


def write_logs(bundle: Bundle, *, version: str, agent_name: str) -> Iterator[bytes]:
    """Yield a record's `LogsData`, in chunks; `version` and `agent_name` as in `write_traces`.

    A log record for the record, then for each step its events, and its failure.
    """
    return in_chunks(_document("Logs", "logRecords", version, _log_records(bundle, agent_name)))


Messages = Iterable[dict[str, object]]


def _document(signal: str, items: str, version: str, messages: Messages) -> Iterator[bytes]:
    service: dict[str, JSON] = {"service.name": SERVICE_NAME, "service.version": version}
    resource = compact({"attributes": attributes(service)})
    scope = compact({"name": SERVICE_NAME, "version": version})
    yield f'{{"resource{signal}":[{{"resource":'.encode() + resource
    yield f',"scope{signal}":[{{"scope":'.encode() + scope
    yield b',"schemaUrl":' + compact(gen_ai.SCHEMA_URL)
    yield from enclosed(f',"{items}":['.encode(), map(compact, messages), b"]")
    yield b"}]}]}"


def _spans(bundle: Bundle, agent_name: str) -> Messages:
    record = bundle["record"]
    trace, parent = trace_id(record["session_id"]), span_id(record["id"], ROOT)
    start, end = _duration(bundle)
    yield without_empty(
        {
            "traceId": trace,
            "spanId": parent,
            "name": f"{gen_ai.INVOKE_AGENT} {agent_name}",
            "kind": gen_ai.INTERNAL,
            "startTimeUnixNano": unix_nano(start),
            "endTimeUnixNano": unix_nano(end),
            "attributes": attributes(_of_record(record, agent_name)),
        }
    )
    for index, step in enumerate(bundle["steps"]):
        yield without_empty(
            {
                "traceId": trace,
                "spanId": span_id(record["id"], index),
                "parentSpanId": parent,
                "name": gen_ai.span_name(step),
                "kind": gen_ai.span_kind(step),
                "startTimeUnixNano": _nano(step["started_at"]),
                "endTimeUnixNano": _nano(step["ended_at"]),
                "attributes": attributes(_of_step(index, step, record)),
                "events": [_span_event(event) for event in step["events"]],
                "status": without_empty({"code": _STATUS_CODES[step["status"]]}),
            }
        )


def _of_record(record: Record, agent_name: str) -> dict[str, JSON]:
    told: dict[str, JSON] = {
        **gen_ai.of_record(record, agent_name),
        "record.id": record["id"],
        "record.tenant_id": record["tenant_id"],
        "record.kind": record["kind"],
        "record.title": record["title"],
        "record.created_at": record["created_at"],
    }
    if record["occurred_at"] is not None:
        told["record.occurred_at"] = record["occurred_at"]
    if record["labels"]:
        told["record.labels"] = dict(record["labels"])
    return told


def _duration(bundle: Bundle) -> tuple[int, int]:
    """Return the first start and the last end, or one moment twice for a record without steps."""
    steps = bundle["steps"]
    if not steps:
        record = bundle["record"]
        moment = unix_nanoseconds(record["occurred_at"] or record["created_at"])
        return moment, moment
    return (
        min(unix_nanoseconds(step["started_at"]) for step in steps),
        max(unix_nanoseconds(step["ended_at"]) for step in steps),
    )


def _of_step(index: int, step: Step, record: Record) -> dict[str, JSON]:
    told: dict[str, JSON] = {**gen_ai.of_step(step, record), **step["attributes"]}
    for side, conventional in gen_ai.SIDES:
        # Values that stand under the name of the conventions need not stand there twice.
        if side in step and told.get(conventional) is not step[side]:
            told[f"record.step.{side}"] = cast("JSON", step[side])
    return {**told, **_names(index, step)}


def _names(index: int, step: Step) -> dict[str, JSON]:
    return {
        "record.step.index": index,
        "record.step.name": step["name"],
        "record.step.kind": step["kind"],
    }


def _span_event(event: Event) -> dict[str, object]:
    return without_empty(
        {
            "timeUnixNano": _nano(event["at"]),
            "name": event["name"],
            "attributes": attributes(event["attributes"]),
        }
    )


def _log_records(bundle: Bundle, agent_name: str) -> Messages:
    record = bundle["record"]
    words = f"{agent_name} recorded for {record['principal']}: {record['kind']}, {record['title']}"
    at = record["occurred_at"] or record["created_at"]
    told = _of_record(record, agent_name)
    yield _log_record(record, ROOT, at, "record.created", _INFO, words, told)
    for index, step in enumerate(bundle["steps"]):
        for event in step["events"]:
            severity = _ERROR if event["name"] == _EXCEPTION else _INFO
            words = _joined(step["name"], event["name"], _message(event["attributes"]))
            told = event["attributes"]
            yield _log_record(record, index, event["at"], event["name"], severity, words, told)
        if step["status"] == "error":
            words = _joined(f"{step['name']} failed", _message(step["attributes"]))
            told = {**gen_ai.of_step(step, record), **step["attributes"], **_names(index, step)}
            at = step["ended_at"]
            yield _log_record(record, index, at, "record.step.failed", _ERROR, words, told)


def _log_record(
    record: Record,
    index: int,
    at: str,
    name: str,
    severity: Mapping[str, object],
    words: str,
    told: Mapping[str, JSON],
) -> dict[str, object]:
    return without_empty(
        {
            "timeUnixNano": _nano(at),
            "observedTimeUnixNano": _nano(record["created_at"]),
            **severity,
            "eventName": name,
            # Readers of logs drop or hide a record without a body.
            "body": {"stringValue": words},
            "attributes": attributes(told),
            "flags": _SAMPLED,
            "traceId": trace_id(record["session_id"]),
            "spanId": span_id(record["id"], index),
        }
    )


def _joined(*words: str) -> str:
    return ": ".join(filter(None, words)) or "event"


def _message(told: Mapping[str, JSON]) -> str:
    """Return what attributes say in words of an error, if they do."""
    found = (told.get(name) for name in _MESSAGES)
    return next((each for each in found if isinstance(each, str) and each), "")


def _nano(text: str) -> str:
    return unix_nano(unix_nanoseconds(text))


def any_value(value: JSON, levels: int = MAX_LEVELS) -> dict[str, object]:
    """Return the AnyValue of a JSON value: integers `intValue`, other numbers `doubleValue`.

    Values nested deeper than `levels` become a `stringValue` that holds canonical JSON.
    """
    if value is None:
        return {}
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if levels == 0:
        return {"stringValue": canonical_json.dumps(value).decode("utf-8")}
    if isinstance(value, dict):
        return {"kvlistValue": without_empty({"values": key_values(value, levels - 1)})}
    values = [any_value(item, levels - 1) for item in value]
    return {"arrayValue": without_empty({"values": values})}


def attributes(values: Mapping[str, JSON]) -> list[dict[str, object]]:
    """Return the attributes of a message, in their order; each has a name, as OTLP asks for."""
    return key_values({name or _UNNAMED: value for name, value in values.items()})


def key_values(values: Mapping[str, JSON], levels: int = MAX_LEVELS) -> list[dict[str, object]]:
    """Return the KeyValue list of an object, in its order."""
    return [
        without_empty({"key": name, "value": any_value(value, levels)})
        for name, value in values.items()
    ]


def unix_nano(moment: int) -> str:
    """Write nanoseconds since 1970 as a fixed64.

    Before 1970 and after 2554 there is none: the empty text, to be left out, which OTLP reads as
    unknown.
    """
    return str(moment) if 0 < moment <= _MAX_FIXED64 else ""


def without_empty(message: Mapping[str, object]) -> dict[str, object]:
    """Leave out the fields that hold what an absent one means: an empty text, list or message."""
    return {name: value for name, value in message.items() if value not in ("", [], {}, 0)}
