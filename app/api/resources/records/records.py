"""Records over HTTP: create, search and read. Their bundles are in `bundles.py`."""

import enum
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, TypeAlias
from uuid import UUID

from flask import Response
from marshmallow import ValidationError, post_load, validates_schema
from marshmallow import fields as plain
from sqlalchemy.orm import Session

from app import ids
from app.api.http.access.auth import caller, requires
from app.api.http.idempotency import once
from app.api.http.paging import FeedArgs, filters, page, page_schema
from app.api.http.requests import large_bodies
from app.api.http.requests.parsing import MAX_RECORD, Blueprint, takes_a_record
from app.api.http.responses.answers import answer
from app.api.http.services import services
from app.api.http.transactions import raw_transaction, transaction
from app.clock import rfc3339
from app.core import feeds
from app.core.callers import Role
from app.core.records import bundles, following, records, search
from app.core.records.records import KIND, LABELS, TITLE, Labels, NewRecord, RecordSchema
from app.core.records.search import Found, Search
from app.core.records.steps import StepStatus
from app.evidence import bundle
from app.evidence.times import began, ended
from app.models import Record
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
MAX_STEP_LINKS = 1_000
MAX_APPROVALS = 100

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
    at = fields.PreciseTime(required=True)
    attributes = fields.JsonObject(MAX_RECORD, load_default=dict)


class StepLinkSchema(Schema):
    """A span, of any trace, that a step has to do with."""

    trace_id = fields.HexId(32, required=True)
    span_id = fields.HexId(16, required=True)
    attributes = fields.JsonObject(MAX_RECORD, load_default=dict)


class StepSchema(Schema):
    """A step of the agent's work; times keep up to nine decimals."""

    name = fields.Text(500, required=True, example="look up the order")
    kind = fields.Text(200, required=True, example="tool")
    started_at = fields.PreciseTime(required=True)
    ended_at = fields.PreciseTime(
        required=True, allow_none=True, description="Null: nobody saw it end."
    )
    status = fields.Choice(StepStatus, required=True)
    attributes = fields.JsonObject(MAX_RECORD, load_default=dict)
    inputs = Names(metadata=_INPUTS)
    outputs = Names(metadata=_INPUTS)
    events = fields.Items(
        fields.Object(StepEventSchema), max_items=MAX_STEP_EVENTS, load_default=list
    )
    span_id = fields.HexId(16, description="Its span in OpenTelemetry, once in a record.")
    parent_span_id = fields.HexId(16)
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


class Order(enum.StrEnum):
    """Orders of the list."""

    DESC = "desc"
    ASC = "asc"


class Include(enum.StrEnum):
    """What a row may have beside metadata."""

    CONTENT = "content"


class ListedRecordSchema(RecordSchema):
    """A record of a list; with `include=content` also what its bundle holds, null once expired."""

    optional = ("content", "steps", "approvals")
    content = plain.Raw(allow_none=True)
    steps = plain.Raw(allow_none=True)
    approvals = plain.Raw(allow_none=True)


RecordPageSchema = page_schema(ListedRecordSchema)


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
    trace_id = fields.HexId(32, description="The label `trace_id`, where it is a trace's id.")
    occurred_since = fields.Time(description="Occurred at this moment or later.")
    occurred_until = fields.Time(description="Occurred before this moment.")
    order = fields.Choice(
        Order,
        description="`asc`: as they were committed, so that a reader who goes on from the last one "
        "misses none. Not with `q` or `label`.",
    )
    after = fields.Id("rec", description="With `order=asc`: begin behind this record.")
    include = fields.Choice(
        Include,
        description="`content`: each record with `content`, `steps` and `approvals` of its bundle, "
        "null once that has expired. Pages end early at 8 MiB of bundles.",
    )

    def check(self, sent: Mapping[str, Any]) -> None:
        """Hold `after`, `q` and `label` to the orders that have them."""
        is_ascending = sent.get("order") == Order.ASC
        wrong = ["after"] if "after" in sent and not is_ascending else []
        wrong += [name for name in ("q", "label") if name in sent and is_ascending]
        if wrong:
            text = "Only with order=asc." if wrong == ["after"] else "Not with order=asc."
            raise ValidationError({name: [text] for name in wrong})


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
    new = NewRecord(**body)
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
    """Search records, or list them newest first, or follow them with `order=asc`.

    A page of a search may hold fewer records than `limit`, even none, although more follow:
    continue while there is a `next_cursor`. With `order=asc` ask later with `after`, the id of the
    last record read.
    """
    with transaction() as session:
        if args.get("order") == Order.ASC:
            return page(
                args,
                lambda *where: _ascending(session, args, *where),
                lambda found: found[1],
                lambda found: found[0],
            )
        return page(
            args, lambda *where: fetch(session, args, *where), lambda found: found[1], position
        )


FoundRecord: TypeAlias = tuple[Found, dict[str, Any]]
_NO_FILTERS = ("q", "label", "order", "after", "include")


def fetch(
    session: Session, args: Mapping[str, Any], after: int | None, limit: int
) -> feeds.Page[FoundRecord]:
    """Return the records that `RecordArgs` selects, each as its GET answers it."""
    asked = Search(args.get("q"), args.get("label", ()), _filters(args))
    master_keys = services().settings.master_keys
    rows = search.rows(session, caller(), master_keys, asked, after, limit)
    shown = _shown(session, args, [row.record for row in rows])
    read_to = rows.read_to if len(shown) == len(rows) else rows[len(shown) - 1].place.number
    return feeds.Page(zip(rows, shown, strict=False), read_to)


def _ascending(
    session: Session, args: Mapping[str, Any], after: UUID | None, limit: int
) -> feeds.Page[tuple[UUID, dict[str, Any]]]:
    """Return the same of `order=asc`, each with its id."""
    rows = following.rows(session, caller(), _filters(args), after or args.get("after"), limit)
    shown = _shown(session, args, rows)
    read_to = None if len(shown) == len(rows) else rows[len(shown) - 1].id
    return feeds.Page(zip((row.id for row in rows), shown, strict=False), read_to)


def _filters(args: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in filters(args).items() if name not in _NO_FILTERS}


def _shown(session: Session, args: Mapping[str, Any], rows: Sequence[Record]) -> list[Any]:
    """Return records as a list shows them; with content, the first that come to `MAX_RECORD`."""
    if "include" not in args or not rows:
        return records.represent(session, rows)
    sizes = accumulate((row.bundle_size for row in rows), initial=0)
    kept = [row for row, before in zip(rows, sizes, strict=False) if before < MAX_RECORD]
    with large_bodies.room_for(sum(row.bundle_size for row in kept), caller().tenant_id):
        found = bundles.read_many(
            session, services().settings.master_keys, caller().tenant_id, [row.id for row in kept]
        )
        shown = records.represent(session, kept)
        for row, each in zip(kept, shown, strict=True):
            raw = found.contents.get(row.id)
            inside: Mapping[str, Any] = {} if raw is None else bundle.read(raw)
            each |= {name: inside.get(name) for name in ListedRecordSchema.optional}
    return shown


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
