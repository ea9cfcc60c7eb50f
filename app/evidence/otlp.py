"""A record in OTLP/JSON: `TracesData` and `LogsData`, streamed by step.

Steps that were spans keep their ids and parents. Otherwise the record is the root span, steps are
its children, a session is a trace, and ids are parts of a SHA-256: trace of the session's id, span
of `<record id>:<step index>`, -1 for the record. Logs are in words.
https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
"""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import cast

from app.evidence import gen_ai
from app.evidence.bundle import Bundle, Event, Link, Step
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
# Where the conventions keep a status's message.
_DESCRIPTION = "otel.status_description"
_OF_SPANS = (gen_ai.INPUTS, gen_ai.OUTPUTS)
_MESSAGES = ("exception.message", "error.message", "otel.status_description", "message")


def trace_id(session_id: str) -> str:
    """Return the 32 hex digits of a session's trace."""
    return sha256(session_id.encode()).hexdigest()[:32]


def span_id(record_id: str, index: int) -> str:
    """Return the 16 hex digits of the span of a record's step, or of the record itself (ROOT)."""
    return sha256(f"{record_id}:{index}".encode()).hexdigest()[:16]


def write_traces(bundle: Bundle, *, version: str) -> Iterator[bytes]:
    """Yield a record's `TracesData`, in chunks; `version` is the service's own."""
    return in_chunks(_document("Spans", "spans", version, _Exported(bundle).spans()))


def write_logs(bundle: Bundle, *, version: str) -> Iterator[bytes]:
    """Yield a record's `LogsData`, in chunks; `version` is the service's own.

    A log record for the record and each approval, then for each step its events and its failure.
    """
    return in_chunks(_document("Logs", "logRecords", version, _Exported(bundle).log_records()))


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


class _Exported:
    """A record with what all of its spans and log records share.

    A record of spans alone (`is_trace`) has no span of its own: the first that has no parent in it
    stands for the record.
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.record = record = bundle["record"]
        self.steps = steps = bundle["steps"]
        self.conversation = gen_ai.conversation(bundle)
        self.trace = record.get("trace_id") or trace_id(record["session"]["id"])
        known = {step.get("span_id") for step in steps}
        self.is_trace = "trace_id" in record and bool(steps) and None not in known
        roots = (i for i, step in enumerate(steps) if step.get("parent_span_id") not in known)
        self.root = next(roots, 0) if self.is_trace else ROOT

    def span_id(self, index: int) -> str:
        """Return the id of the span of a step, or of the record itself (ROOT)."""
        derived = span_id(self.record["id"], index)
        return derived if index == ROOT else self.steps[index].get("span_id", derived)

    def spans(self) -> Messages:
        """Yield the spans, the record's own first if it has one."""
        if not self.is_trace:
            start, end = self._duration()
            yield without_empty(
                {
                    "traceId": self.trace,
                    "spanId": self.span_id(ROOT),
                    "name": f"{gen_ai.INVOKE_AGENT} {self.record['agent']['name']}",
                    "kind": gen_ai.INTERNAL,
                    "startTimeUnixNano": unix_nano(start),
                    "endTimeUnixNano": unix_nano(end),
                    "attributes": attributes(self._of_record()),
                }
            )
        above = "" if self.is_trace else self.span_id(ROOT)
        for index, step in enumerate(self.steps):
            yield without_empty(
                {
                    "traceId": self.trace,
                    "spanId": self.span_id(index),
                    "parentSpanId": step.get("parent_span_id", above),
                    "name": gen_ai.span_name(step),
                    "kind": gen_ai.span_kind(step),
                    "startTimeUnixNano": _nano(step["started_at"]),
                    "endTimeUnixNano": _nano(step["ended_at"]) if "ended_at" in step else "",
                    "attributes": attributes(self._of_step(index, step)),
                    "events": [_span_event(event) for event in step["events"]],
                    "links": [_span_link(link) for link in step.get("links", ())],
                    "status": _status(step),
                }
            )

    def log_records(self) -> Messages:
        """Yield the log records: each has a body in words and a severity."""
        record, root = self.record, self.root
        who = f"{record['agent']['name']} recorded for {record['principal']}"
        words = f"{who}: {record['kind']}, {record['title']}"
        at = record["occurred_at"] or record["created_at"]
        yield self._log_record(root, at, "record.created", _INFO, words, self._of_record())
        for approval in self.bundle.get("approvals", ()):
            said = cast("dict[str, JSON]", {f"approval.{n}": v for n, v in approval.items()})
            words = _joined(
                f"{approval['approved_by']} decided", approval["decision"], approval.get("note", "")
            )
            yield self._log_record(root, approval["at"], "record.approval", _INFO, words, said)
        for index, step in enumerate(self.steps):
            for event in step["events"]:
                severity = _ERROR if event["name"] == _EXCEPTION else _INFO
                words = _joined(step["name"], event["name"], _message(event["attributes"]))
                told = event["attributes"]
                yield self._log_record(index, event["at"], event["name"], severity, words, told)
            if step["status"] == "error":
                words = _joined(f"{step['name']} failed", _message(step["attributes"]))
                conventional = gen_ai.of_step(step, self.conversation)
                told = {**conventional, **step["attributes"], **_names(index, step)}
                at = step.get("ended_at", step["started_at"])
                yield self._log_record(index, at, "record.step.failed", _ERROR, words, told)

    def _of_record(self) -> dict[str, JSON]:
        return {**gen_ai.of_record(self.record, self.conversation), **self._metadata()}

    def _metadata(self) -> dict[str, JSON]:
        record = self.record
        told: dict[str, JSON] = {
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
        if "approvals" in self.bundle:
            told["record.approvals"] = cast("list[JSON]", self.bundle["approvals"])
        return told

    def _duration(self) -> tuple[int, int]:
        """Return the first start and the last end, or one moment twice without steps."""
        if not self.steps:
            moment = unix_nanoseconds(self.record["occurred_at"] or self.record["created_at"])
            return moment, moment
        ends = (step.get("ended_at", step["started_at"]) for step in self.steps)
        return (
            min(unix_nanoseconds(step["started_at"]) for step in self.steps),
            max(map(unix_nanoseconds, ends)),
        )

    def _of_step(self, index: int, step: Step) -> dict[str, JSON]:
        told: dict[str, JSON] = {**gen_ai.of_step(step, self.conversation), **step["attributes"]}
        if index == self.root:
            told |= self._metadata()
        for (side, conventional), others in zip(gen_ai.SIDES, _OF_SPANS, strict=True):
            # Values that stand under the name of the conventions need not stand there twice.
            is_told = self.is_trace and not step["attributes"].keys().isdisjoint(others)
            if side in step and not is_told and told.get(conventional) is not step[side]:
                told[f"record.step.{side}"] = cast("JSON", step[side])
        return {**told, **_names(index, step)}

    def _log_record(
        self,
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
                "observedTimeUnixNano": _nano(self.record["created_at"]),
                **severity,
                "eventName": name,
                # Readers of logs drop or hide a record without a body.
                "body": {"stringValue": words},
                "attributes": attributes(told),
                "flags": _SAMPLED,
                "traceId": self.trace,
                "spanId": self.span_id(index),
            }
        )


def _status(step: Step) -> dict[str, object]:
    told = step["attributes"].get(_DESCRIPTION) if "span_id" in step else None
    message = told if isinstance(told, str) else ""
    return without_empty({"message": message, "code": _STATUS_CODES[step["status"]]})


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


def _span_link(link: Link) -> dict[str, object]:
    return without_empty(
        {
            "traceId": link["trace_id"],
            "spanId": link["span_id"],
            "attributes": attributes(link["attributes"]),
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
