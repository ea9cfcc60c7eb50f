"""Records over HTTP: create, read, search, and follow in the order of their commits.

Their bundles are in `bundles.py`.
"""

import enum
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, islice
from typing import Any
from uuid import UUID

import structlog
from flask import Response, request
from marshmallow import ValidationError
from marshmallow import fields as plain
from sqlalchemy.orm import Session

from app.api.http import large_work, parsing, promises
from app.api.http.answers import answer_written, encode
from app.api.http.auth import READ, WRITE_UNCONFIRMED, confirmed_caller
from app.api.http.documentation import takes_gzip
from app.api.http.idempotency import REPLAYED, once, sent_key, sent_request
from app.api.http.paging import FeedArgs, filters
from app.api.http.parsing import MAX_RECORD, takes_a_record
from app.api.http.promises import may_promise
from app.api.http.routes import PAIRS, Routes
from app.api.http.services import (
    caller,
    prefers_replica,
    raw_transaction,
    reads_objects,
    services,
    transaction,
)
from app.api.resources.records.record_schemas import (
    MOST_ENTRY_ERRORS,
    BatchArgs,
    NewRecordSchema,
    NewRecordsSchema,
    RecordsSchema,
)
from app.core import feeds, idempotency
from app.core.audit import record_reads
from app.core.records import bundles, intake, records, search
from app.core.records.intake import Again, Asked, OtherRefused, Result, Stored
from app.core.records.records import RecordSchema
from app.core.records.search import Search
from app.core.records.signing import NewRecord
from app.database import RawTransaction
from app.errors import PROBLEM_TYPES, FieldError, Invalid, ServiceError
from app.evidence import bundle
from app.lib import canonical_json
from app.models import Record
from app.schemas import fields, span_fields
from app.schemas.fields import MOST_ERRORS

blp = Routes(
    "records",
    __name__,
    url_prefix="/v1/records",
    description="What agents did: signed, searchable, and committed to in a public log.",
)

_log = structlog.get_logger(__name__)

# What a millisecond signs.
_ON_LOOP = 4 * 1024


class Order(enum.StrEnum):
    """Orders of the list."""

    DESC = "desc"
    ASC = "asc"


class Include(enum.StrEnum):
    """What a row may have beside metadata."""

    CONTENT = "content"


_INSIDE = ("content", "steps", "approvals")


class ListedRecordSchema(RecordSchema):
    """A record of a list; with `include=content` also what its bundle holds, null once expired."""

    optional = (*RecordSchema.optional, *_INSIDE, "damaged")
    content = plain.Raw(allow_none=True)
    steps = plain.Raw(allow_none=True)
    approvals = plain.Raw(allow_none=True)
    damaged = fields.Boolean(
        description="True: the stored bundle cannot be opened, so its content is null. Else absent."
    )


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
    trace_id = span_fields.HexId(32, description="The label `trace_id`, where it is a trace's id.")
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


_NO_FILTERS = ("q", "label", "order", "after", "include")


@blp.serves(
    "POST",
    WRITE_UNCONFIRMED,
    RecordSchema,
    201,
    takes=NewRecordSchema,
    errors=(404,),
    around=(takes_a_record,),
)
@may_promise(_ON_LOOP)
def create(body: dict[str, Any]) -> Response:
    """Sign and store a record of what an agent did.

    The body is at most 8 MiB. The response has the commitment to the signed bundle; its index in
    the transparency log follows (`log-proof`). A completed session takes no more records (409), nor
    does a tenant that has reached its storage limit (409 `storage-limit`).
    """
    here, new = services().records, NewRecord(**body)
    asked = Asked(caller(), [new], [sent_request()])
    if promises.on_loop():
        if not here.signer.knows(caller().tenant_id, new.session_id):
            promises.leave()
        return promises.promise(partial(here.join, asked))
    try:
        found = promises.outcome()
    except Again:
        found = None
    if found is None:
        found = intake.answer(here.add(asked)[0])
    return answer_written(found.body, found.status, REPLAYED if found.replayed else None)


@blp.serves(
    "POST /batch",
    WRITE_UNCONFIRMED,
    RecordsSchema,
    201,
    takes=NewRecordsSchema,
    args=BatchArgs,
    errors=(404,),
    around=(takes_a_record,),
)
@takes_gzip
def create_batch(body: dict[str, Any], args: dict[str, Any]) -> Response:
    """Sign and store up to 1000 records

    The body is at most 8 MiB. Each record is taken or refused for itself, as if it were sent alone:
    `data` has the record, or its `problem`. With `atomic=true` all are stored or none, and a
    problem answers the request, with pointers to the records.
    """
    here, atomic = services().records, args["atomic"]
    asked = _asked(body["records"], atomic=atomic)
    if sent_key() is None:
        written = b",".join(_entries(here.add(asked), atomic=atomic))
        return answer_written(b'{"data":[%b]}' % written, 201)
    confirmed_caller()
    ready = here.prepare(asked)

    def store(tx: RawTransaction) -> dict[str, Any]:
        written = _entries(here.add_within(tx, ready), atomic=atomic)
        return {"data": [json.loads(each) for each in written]}

    return once(201, store, within=raw_transaction)


def _asked(sent: Sequence[Any], *, atomic: bool) -> Asked:
    """Return the records of a batch; one that cannot be loaded is its error."""
    raw = parsing.json_object()["records"]
    new: list[NewRecord | ServiceError] = []
    repeats: list[idempotency.Request | None] = []
    for each, written in zip(sent, raw, strict=True):
        if isinstance(each, ValidationError):
            new.append(parsing.refusal(each, MOST_ENTRY_ERRORS))
            repeats.append(None)
            continue
        key = each.pop("idempotency_key", None)
        new.append(NewRecord(**each))
        repeats.append(key and _repeat(key, written))
    return Asked(caller(), new, repeats, atomic)


def _repeat(key: str, written: Mapping[str, Any]) -> idempotency.Request:
    alone = {name: value for name, value in written.items() if name != "idempotency_key"}
    path = request.path.removesuffix("/batch")
    return idempotency.Request.of(caller(), key, "POST", path, canonical_json.dumps(alone))


def _entries(found: Sequence[Result], *, atomic: bool) -> list[bytes]:
    """Return what became of each record, as JSON; raises what answers the whole request."""
    refused = {place: each for place, each in enumerate(found) if isinstance(each, ServiceError)}
    if len(refused) == len(found):
        # Perhaps no statement has confirmed the caller.
        confirmed_caller()
    if atomic and refused:
        raise _together(refused)
    return [
        each.body if isinstance(each, Stored) else encode({"problem": _problem(each)})
        for each in found
    ]


def _problem(error: ServiceError) -> dict[str, Any]:
    kind = PROBLEM_TYPES[error.slug]
    return {
        "status": kind.status,
        "type": f"{services().settings.base_url}/problems/{error.slug}",
        "errors": _errors(error, ""),
    }


def _together(refused: Mapping[int, ServiceError]) -> ServiceError:
    """Return the first error, with pointers to all records that have its status."""
    first = next(each for each in refused.values() if not isinstance(each, OtherRefused))
    alike = (
        _errors(each, f"/records/{place}")
        for place, each in refused.items()
        if each.slug == first.slug and not isinstance(each, OtherRefused)
    )
    first.members = {**first.members, "errors": [*islice(chain.from_iterable(alike), MOST_ERRORS)]}
    return first


def _errors(error: ServiceError, record: str) -> list[dict[str, Any]]:
    """Return the places of an error in a record; of one without places, the record itself."""
    places = error.members.get("errors") or [{"pointer": "", "detail": error.detail}]
    return [{**each, "pointer": record + each["pointer"]} for each in places]


@blp.lists(
    "",
    READ,
    ListedRecordSchema,
    RecordArgs,
    around=(prefers_replica, reads_objects),
    **PAIRS,
)
def list_records(
    session: Session, args: Mapping[str, Any], after: Any, limit: int
) -> feeds.Page[tuple[UUID | int, dict[str, Any]]]:
    """Search records, or list them newest first, or follow them with `order=asc`.

    A page of a search may hold fewer records than `limit`, even none, although more follow:
    continue while there is a `next_cursor`. With `order=asc` ask later with `after`, the id of the
    last record read.
    """
    is_ascending = args.get("order") == Order.ASC
    wrong = {"q", "label"} & args.keys() if is_ascending else {"after"} & args.keys()
    if wrong:
        text = f"Query parameter: {'Not' if is_ascending else 'Only'} with order=asc."
        raise Invalid(*(FieldError(f"/{name}", text) for name in sorted(wrong)))
    others = {name: value for name, value in filters(args).items() if name not in _NO_FILTERS}
    read_to: UUID | int | None = None
    places: list[UUID | int]
    if is_ascending:
        rows = records.rows(session, caller(), others, after or args.get("after"), limit)
        places = [row.id for row in rows]
    else:
        asked = Search(args.get("q"), args.get("label", ()), others)
        found = search.rows(session, caller(), services().settings.master_keys, asked, after, limit)
        rows, read_to = [each.record for each in found], found.read_to
        places = [each.place.number for each in found]
    shown = _shown(session, args, rows)
    if len(shown) < len(rows):
        read_to = places[len(shown) - 1]
    return feeds.Page(zip(places, shown, strict=False), read_to)


@blp.serves("GET /<record_id>", READ, RecordSchema)
def read(record_id: UUID | None) -> dict[str, Any]:
    """Read a record's metadata, which remains after its bundle has expired."""
    with transaction() as session:
        found = records.find(session, caller(), record_id)
        return records.represent(session, [found])[0]


def _shown(session: Session, args: Mapping[str, Any], rows: Sequence[Record]) -> list[Any]:
    """Return records as a list shows them; with content, the first that come to `MAX_RECORD`."""
    if "include" not in args or not rows:
        return records.represent(session, rows)
    sizes = accumulate((row.bundle_size for row in rows), initial=0)
    kept = [row for row, before in zip(rows, sizes, strict=False) if before < MAX_RECORD]
    with large_work.room_for(sum(row.bundle_size for row in kept), caller().tenant_id):
        found = bundles.read_many(
            session, services().settings.master_keys, caller().tenant_id, [row.id for row in kept]
        )
        shown = records.represent(session, kept)
        for row, each in zip(kept, shown, strict=True):
            raw = found.contents.get(row.id)
            inside: Mapping[str, Any] = {} if raw is None else {"approvals": [], **bundle.read(raw)}
            each |= {name: inside.get(name) for name in _INSIDE}
            if row.id in found.damaged:
                each["damaged"] = True
        if found.damaged:
            broken = [str(each) for each in found.damaged]
            _log.error("bundles_damaged", tenant=str(caller().tenant_id), records=broken)
        if services().settings.audit_reads:
            record_reads.note(session, caller(), list(found.contents))
    return shown
