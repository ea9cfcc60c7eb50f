"""Records over HTTP: create, search and read. Their bundles are in `bundles.py`."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any
from uuid import UUID

from flask import Response, request
from marshmallow import ValidationError

from app.api.http import parsing, promises
from app.api.http.answers import answer, answer_written, encode
from app.api.http.auth import confirmed_caller, requires
from app.api.http.documentation import Blueprint, takes_gzip
from app.api.http.idempotency import REPLAYED, once, sent_key, sent_request
from app.api.http.parsing import takes_a_record
from app.api.http.promises import may_promise
from app.api.http.services import caller, prefers_replica, raw_transaction, services, transaction
from app.api.resources.records import record_list
from app.api.resources.records.record_list import RecordArgs, RecordPageSchema
from app.api.resources.records.record_schemas import (
    MOST_ENTRY_ERRORS,
    BatchArgs,
    NewRecordSchema,
    NewRecordsSchema,
    RecordsSchema,
)
from app.core import idempotency
from app.core.callers import Role
from app.core.records import intake, records
from app.core.records.intake import Again, Asked, OtherRefused, Result, Stored
from app.core.records.records import RecordSchema
from app.core.records.signing import NewRecord
from app.database import RawTransaction
from app.errors import PROBLEM_TYPES, ServiceError
from app.lib import canonical_json
from app.schemas.fields import MOST_ERRORS

blp = Blueprint(
    "records",
    __name__,
    url_prefix="/v1/records",
    description="What agents did: signed, searchable, and committed to in a public log.",
)

# What a millisecond signs.
_ON_LOOP = 4 * 1024


@blp.route("", methods=["POST"])
@may_promise(_ON_LOOP)
@requires(Role.WRITE, confirmed_by_view=True)
@takes_a_record
@blp.arguments(NewRecordSchema)
@blp.response(201, RecordSchema)
@blp.alt_response(404, "NOT_FOUND")
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


@blp.route("/batch", methods=["POST"])
@requires(Role.WRITE, confirmed_by_view=True)
@takes_gzip
@takes_a_record
@blp.arguments(NewRecordsSchema)
@blp.arguments(BatchArgs, location="query")
@blp.response(201, RecordsSchema)
@blp.alt_response(404, "NOT_FOUND")
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


@blp.route("", methods=["GET"], endpoint="list")
@requires(Role.READ)
@blp.arguments(RecordArgs, location="query")
@blp.response(200, RecordPageSchema)
@prefers_replica
def list_records(args: dict[str, Any]) -> Response:
    """Search records, or list them newest first, or follow them with `order=asc`.

    A page of a search may hold fewer records than `limit`, even none, although more follow:
    continue while there is a `next_cursor`. With `order=asc` ask later with `after`, the id of the
    last record read.
    """
    return record_list.answer_page(args)


@blp.route("/<record_id>", methods=["GET"])
@requires(Role.READ)
@blp.response(200, RecordSchema)
def read(record_id: UUID | None) -> Response:
    """Read a record's metadata, which remains after its bundle has expired."""
    with transaction() as session:
        found = records.find(session, caller(), record_id)
        return answer(records.represent(session, [found])[0])
