"""Schemas of records, in requests and responses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from marshmallow import ValidationError, validates_schema

from app import fields
from app.api.http.paging import page_schema
from app.api.http.requests.parsing import MAX_RECORD
from app.core.records.steps import StepStatus
from app.schemas import AnswerSchema, Schema

MAX_STEPS = 50_000
MAX_STEP_EVENTS = 10_000
MAX_LABELS = 64

_KIND: dict[str, Any] = {"example": "tool.call"}
_TITLE: dict[str, Any] = {"example": "Refunded order 4711"}
_LABELS: dict[str, Any] = {
    "description": f"At most {MAX_LABELS}; each is a filter of the list (`label=name:value`).",
    "example": {"env": "production"},
}
_INPUTS: dict[str, Any] = {
    "description": "Inputs or outputs of the step: an array of names, or an object of names with "
    "their values.",
    "example": ["order-4711.json"],
}


class Labels(fields.Strict):
    """An object of strings: names without a colon, 1 to 100 characters; values up to 500."""

    json_schema: Mapping[str, Any] = MappingProxyType(
        {
            "type": "object",
            "maxProperties": MAX_LABELS,
            "propertyNames": {"pattern": r"^[^:\u0000]{1,100}$"},
            "additionalProperties": {
                "type": "string",
                "maxLength": 500,
                "pattern": r"^[^\u0000]*$",
            },
        }
    )

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> dict[str, str]:
        if not isinstance(value, dict):
            raise ValidationError("Send an object of strings.")
        if len(value) > MAX_LABELS:
            raise ValidationError(f"At most {MAX_LABELS} labels; this has {len(value)}.")
        wrong = {name: said for name, text in value.items() if (said := _refusal(name, text))}
        if wrong:
            raise ValidationError(wrong)
        return value


def _refusal(name: str, value: Any) -> list[str]:
    if not 1 <= len(name) <= 100 or ":" in name or "\0" in name:
        return ["A label's name has 1 to 100 characters, none of them a colon or U+0000."]
    if not isinstance(value, str):
        return ["Send a string."]
    if len(value) > 500 or "\0" in value:
        return ["At most 500 characters, without U+0000."]
    return []


class Names(fields.Strict):
    """Names of things: an array of strings, or an object whose members are named so."""

    json_schema: Mapping[str, Any] = MappingProxyType(
        {"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "object"}]}
    )

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> list[str] | dict[str, Any]:
        if isinstance(value, dict) or (
            isinstance(value, list) and all(isinstance(name, str) for name in value)
        ):
            return value
        raise ValidationError("Send an array of names, or an object of names with their values.")


class StepEventSchema(Schema):
    """An event during a step."""

    name = fields.Text(500, required=True)
    at = fields.Time(required=True)
    attributes = fields.JsonObject(MAX_RECORD, load_default=dict)


class StepSchema(Schema):
    """A step of the agent's work."""

    name = fields.Text(500, required=True, example="look up the order")
    kind = fields.Text(200, required=True, example="tool")
    started_at = fields.Time(required=True)
    ended_at = fields.Time(required=True)
    status = fields.Choice(StepStatus, required=True)
    attributes = fields.JsonObject(MAX_RECORD, load_default=dict)
    inputs = Names(load_default=list, metadata=_INPUTS)
    outputs = Names(load_default=list, metadata=_INPUTS)
    events = fields.Items(
        fields.Object(StepEventSchema), max_items=MAX_STEP_EVENTS, load_default=list
    )

    @validates_schema
    def _check_order(self, step: dict[str, Any], **_: Any) -> None:
        if step["ended_at"] < step["started_at"]:
            raise ValidationError("A step ends when it started, or later.", "ended_at")


class NewRecordSchema(Schema):
    """A record to sign and store."""

    session_id = fields.Id("ses", required=True)
    kind = fields.Text(200, required=True, metadata=_KIND)
    title = fields.Text(500, required=True, metadata=_TITLE)
    occurred_at = fields.Time(description="Absent: when the service received it.")
    labels = Labels(load_default=dict, metadata=_LABELS)
    content = fields.JsonValue(
        MAX_RECORD,
        required=True,
        allow_none=True,
        description="Any JSON that describes what the agent did.",
        example={"amount": "49.90 EUR"},
    )
    steps = fields.Items(fields.Object(StepSchema), max_items=MAX_STEPS, load_default=list)


class BundleSchema(AnswerSchema):
    """The commitment to a record's bundle, which remains after the bundle has expired."""

    sha256 = fields.Text(64)
    size = fields.Count()
    key_id = fields.Text(16)
    signature = fields.Text(88, description="Ed25519 over the exact bytes, base64.")
    expired = fields.Boolean()


class LogSchema(AnswerSchema):
    """The state of the bundle's commitment in the transparency log."""

    status = fields.Text(10, metadata={"enum": ["pending", "integrated"]})
    index = fields.Count(allow_none=True)


class RecordSchema(AnswerSchema):
    """A record: its metadata and its bundle's commitment, never its content."""

    id = fields.Id("rec")
    session_id = fields.Id("ses")
    agent_id = fields.Id("agt")
    principal = fields.Text(200)
    kind = fields.Text(200, metadata=_KIND)
    title = fields.Text(500, metadata=_TITLE)
    labels = Labels(metadata=_LABELS)
    occurred_at = fields.Time()
    created_at = fields.Time()
    bundle = fields.Object(BundleSchema)
    log = fields.Object(LogSchema)


RecordPageSchema = page_schema(RecordSchema)
