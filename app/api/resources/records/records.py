"""Records over HTTP: create, search and read. Their bundles are in `bundles.py`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from flask import Response
from marshmallow import ValidationError, validates_schema
from sqlalchemy.orm import Session

from app import ids
from app.api.http.access.auth import caller, requires
from app.api.http.idempotency import once
from app.api.http.paging import FeedArgs, filters, page, page_schema
from app.api.http.requests.parsing import MAX_RECORD, Blueprint, takes_a_record
from app.api.http.responses.answers import answer
from app.api.http.services import services
from app.api.http.transactions import raw_transaction, transaction
from app.core import feeds
from app.core.callers import Role
from app.core.records import records, search, steps
from app.core.records.records import KIND, LABELS, TITLE, Labels, NewRecord, RecordSchema
from app.core.records.search import Found, Search
from app.core.records.steps import StepStatus
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint(
    "records",
    __name__,
    url_prefix="/v1/records",
    description="What agents did: signed, searchable, and committed to in a public log.",
)


MAX_STEPS = 50_000
MAX_STEP_EVENTS = 10_000

_INPUTS: dict[str, Any] = {
    "description": "Inputs or outputs of the step: an array of names, or an object of names with "
    "their values.",
    "example": ["order-4711.json"],
}


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
    kind = fields.Text(200, required=True, metadata=KIND)
    title = fields.Text(500, required=True, metadata=TITLE)
    occurred_at = fields.Time(description="Absent: when the service received it.")
    labels = Labels(load_default=dict, metadata=LABELS)
    content = fields.JsonValue(
        MAX_RECORD,
        required=True,
        allow_none=True,
        description="Any JSON that describes what the agent did.",
        example={"amount": "49.90 EUR"},
    )
    steps = fields.Items(fields.Object(StepSchema), max_items=MAX_STEPS, load_default=list)


RecordPageSchema = page_schema(RecordSchema)


class LabelPair(fields.Text):
    """A label to find records by, as `name:value`."""

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> tuple[str, str]:  # type: ignore[override]  # a pair of texts, where the base has one
        name, colon, rest = super()._deserialize(value, *arguments, **options).partition(":")
        if not name or not colon:
            raise ValidationError("Write name:value.")
        return name, rest


class RecordArgs(FeedArgs):
    """Filters of the list of records; all given must match."""

    q = fields.Text(
        1000,
        description="Words, which must all match, ignoring case; words in "
        '"quotes" match as a phrase. Matches in title, kind or labels come first, '
        "then matches in the content (its texts and numbers, and the names of "
        "steps, inputs and outputs; the first 5,000 words).",
    )
    session_id = fields.Id("ses")
    kind = fields.Text(200)
    label = fields.Items(
        LabelPair(700), max_items=16, description="`name:value`; several must all match."
    )


@blp.route("", methods=["POST"])
@requires(Role.WRITE)
@takes_a_record
@blp.arguments(NewRecordSchema())
@blp.response(201, RecordSchema)
@blp.alt_response(404, "NOT_FOUND")
def create(body: dict[str, Any]) -> Response:
    """Sign and store a record of what an agent did.

    The body is at most 8 MiB. The response has the commitment to the signed bundle; its index in
    the transparency log follows (`log-proof`). A completed session takes no more records (409), nor
    does a tenant that has reached its storage limit (409 `storage-limit`).
    """
    new = NewRecord(**{**body, "steps": steps.as_signed(body["steps"])})
    settings = services().settings
    with raw_transaction() as tx:
        draft = records.draft(tx, caller(), settings.master_keys, new.session_id)
    signed = None if draft is None else records.sign(caller(), draft, new)
    with raw_transaction() as tx:
        return once(tx, 201, lambda: records.add(tx, caller(), settings, new.session_id, signed))


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ)
@blp.arguments(RecordArgs, location="query")
@blp.response(200, RecordPageSchema)
def list_records(args: dict[str, Any]) -> Response:
    """Search records, or list them newest first.

    A page of a search may hold fewer records than `limit`, even none, although more follow:
    continue while there is a `next_cursor`.
    """
    with transaction() as session:
        return page(
            args, lambda *where: fetch(session, args, *where), lambda found: found[1], position
        )


FoundRecord: TypeAlias = tuple[Found, dict[str, Any]]


def fetch(
    session: Session, args: Mapping[str, Any], after: int | None, limit: int
) -> feeds.Page[FoundRecord]:
    """Return the records that `RecordArgs` selects, each as its GET answers it."""
    others = {name: value for name, value in filters(args).items() if name not in ("q", "label")}
    asked = Search(args.get("q"), args.get("label", ()), others)
    master_keys = services().settings.master_keys
    rows = search.rows(session, caller(), master_keys, asked, after, limit)
    shown = records.represent(session, [row.record for row in rows])
    return feeds.Page(zip(rows, shown, strict=True), rows.read_to)


def position(found: FoundRecord) -> int:
    """Return a found record's position in its list."""
    return found[0].place.number


@blp.route("/<record_id>", methods=["GET"])
@requires(Role.READ)
@blp.response(200, RecordSchema)
def read(record_id: str) -> Response:
    """Read a record's metadata, which remains after its bundle has expired."""
    with transaction() as session:
        found = records.find(session, caller(), ids.parse("rec", record_id))
        return answer(records.represent(session, [found])[0])
