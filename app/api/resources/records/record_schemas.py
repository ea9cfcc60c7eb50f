"""The JSON of new records, one and many, and of their answers."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from marshmallow import ValidationError, post_load, validates_schema

from app.api.http.parsing import MAX_RECORD
from app.clock import rfc3339
from app.core.records.records import RecordSchema
from app.evidence.times import began, ended
from app.schemas import fields, span_fields
from app.schemas.fields import MOST_ERRORS
from app.schemas.schema import AnswerSchema, ItemsApart, Schema

MAX_BATCH = 1000
# A thousand records can be wrong in a hundred places each.
MOST_ENTRY_ERRORS = 10
MAX_STEPS = 50_000
MAX_STEP_EVENTS = 10_000
MAX_STEP_LINKS = 1_000
MAX_APPROVALS = 100

_INPUTS: dict[str, Any] = {
    "description": "Inputs or outputs of the step: an array of names, or an object of names with "
    "their values.",
    "example": ["order-4711.json"],
}


class StepStatus(enum.StrEnum):
    """Statuses of a step, as OpenTelemetry defines them."""

    OK = "ok"
    ERROR = "error"
    UNSET = "unset"


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
    at = span_fields.PreciseTime(required=True)
    attributes = fields.JsonObject(MAX_RECORD, load_default=dict)


class StepLinkSchema(Schema):
    """A span, of any trace, that a step has to do with."""

    trace_id = span_fields.HexId(32, required=True)
    span_id = span_fields.HexId(16, required=True)
    attributes = fields.JsonObject(MAX_RECORD, load_default=dict)


class StepSchema(Schema):
    """A step of the agent's work; times keep up to nine decimals."""

    name = fields.Text(500, required=True, example="look up the order")
    kind = fields.Text(200, required=True, example="tool")
    started_at = span_fields.PreciseTime(required=True)
    ended_at = span_fields.PreciseTime(
        required=True, allow_none=True, description="Null: nobody saw it end."
    )
    status = fields.Choice(StepStatus, required=True)
    attributes = fields.JsonObject(MAX_RECORD, load_default=dict)
    inputs = Names(metadata=_INPUTS)
    outputs = Names(metadata=_INPUTS)
    events = fields.Items(
        fields.Object(StepEventSchema), max_items=MAX_STEP_EVENTS, load_default=list
    )
    span_id = span_fields.HexId(16, description="Its span in OpenTelemetry, once in a record.")
    parent_span_id = span_fields.HexId(16)
    links = fields.Items(fields.Object(StepLinkSchema), max_items=MAX_STEP_LINKS)

    @validates_schema
    def _check_order(self, step: dict[str, Any], **_: Any) -> None:
        if step["ended_at"] is not None and ended(step) < began(step):
            raise ValidationError("A step ends when it started, or later.", "ended_at")

    @post_load
    def _as_signed(self, step: dict[str, Any], **_: Any) -> dict[str, Any]:
        if step["ended_at"] is None:
            del step["ended_at"]
        return step


class ApprovalSchema(Schema):
    """A person's decision on what the agent did or wanted to do."""

    approved_by = fields.Text(200, required=True, example="dana@example.com")
    at = fields.Time(required=True)
    decision = fields.Text(100, required=True, example="approved")
    note = fields.Text(10_000)

    @post_load
    def _as_signed(self, approval: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {**approval, "at": rfc3339(approval["at"])}


class NewRecordSchema(Schema):
    """A record to sign and store."""

    session_id = fields.Id("ses", required=True)
    kind = RecordSchema.field("kind", required=True)
    title = RecordSchema.field("title", required=True)
    occurred_at = fields.Time(description="Absent: when the service received it.")
    labels = RecordSchema.field("labels", load_default=dict)
    content = fields.JsonValue(
        MAX_RECORD,
        required=True,
        allow_none=True,
        description="Any JSON that describes what the agent did.",
        example={"amount": "49.90 EUR"},
    )
    steps = fields.Items(fields.Object(StepSchema), max_items=MAX_STEPS, load_default=list)
    approvals = fields.Items(
        fields.Object(ApprovalSchema),
        max_items=MAX_APPROVALS,
        load_default=list,
        description="Where a person decided: signed with the record.",
    )

    @validates_schema
    def _check_spans(self, record: dict[str, Any], **_: Any) -> None:
        known: set[str] = set()
        for place, step in enumerate(record["steps"]):
            if (span := step.get("span_id")) in known:
                raise ValidationError({"steps": {place: {"span_id": ["Another step has it."]}}})
            known |= {span} if span else set()


class BatchedRecordSchema(NewRecordSchema):
    """A record among others."""

    idempotency_key = fields.Text(
        255, description="As the header Idempotency-Key of a POST of this record alone."
    )

    def check(self, sent: Mapping[str, Any]) -> None:
        """Refuse a key that no header could have."""
        key = sent.get("idempotency_key")
        if isinstance(key, str) and not (key.isascii() and key.isprintable()):
            raise ValidationError("Send printable ASCII characters.", "idempotency_key")


class NewRecordsSchema(Schema):
    """Records to sign and store, each for itself."""

    records = ItemsApart(
        fields.Object(BatchedRecordSchema), required=True, min_items=1, max_items=MAX_BATCH
    )


class BatchArgs(Schema):
    """How records are stored."""

    atomic = fields.QueryBoolean(
        load_default=False, metadata={"description": "Store all or none.", "default": False}
    )


class EntryErrorSchema(AnswerSchema):
    """A place in a record, and why it was refused."""

    pointer = fields.AnyText(example="/title")
    detail = fields.AnyText()


class EntryProblemSchema(AnswerSchema):
    """Why a record of several was not stored."""

    status = fields.Integer(400, 599, example=422)
    type = fields.AnyText(description="URL of the page that explains this kind of error.")
    errors = fields.Items(fields.Object(EntryErrorSchema), max_items=MOST_ERRORS)


class RecordOrProblemSchema(RecordSchema):
    """A record that was stored, or alone `problem`: why it was not."""

    optional = ("problem", *RecordSchema().fields)

    problem = fields.Object(EntryProblemSchema)


class RecordsSchema(AnswerSchema):
    """What became of each record, in the order they were sent."""

    data = fields.Items(fields.Object(RecordOrProblemSchema), max_items=MAX_BATCH)
