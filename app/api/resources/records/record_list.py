"""The list of records: newest first, by words, or in the order in which they were committed."""

import enum
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias
from uuid import UUID

import structlog
from flask import Response
from marshmallow import ValidationError
from marshmallow import fields as plain
from sqlalchemy.orm import Session

from app.api.http import large_work
from app.api.http.paging import FeedArgs, filters, page, page_schema
from app.api.http.parsing import MAX_RECORD
from app.api.http.services import caller, services, transaction
from app.core import feeds
from app.core.audit import record_reads
from app.core.records import bundles, records, search
from app.core.records.records import RecordSchema
from app.core.records.search import Found, Search
from app.errors import FieldError, Invalid
from app.evidence import bundle
from app.models import Record
from app.schemas import fields, span_fields

_log = structlog.get_logger(__name__)


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


FoundRecord: TypeAlias = tuple[Found, dict[str, Any]]
_CONTENT = ("content", "steps", "approvals")
_NO_FILTERS = ("q", "label", "order", "after", "include")


def answer_page(args: Mapping[str, Any]) -> Response:
    """Answer one page of the records that `RecordArgs` selects.

    Raises `Invalid` for a parameter that the order does not have.
    """
    is_ascending = args.get("order") == Order.ASC
    wrong = {"q", "label"} & args.keys() if is_ascending else {"after"} & args.keys()
    if wrong:
        text = f"Query parameter: {'Not' if is_ascending else 'Only'} with order=asc."
        raise Invalid(*(FieldError(f"/{name}", text) for name in sorted(wrong)))
    with transaction() as session:
        if is_ascending:
            return page(
                args,
                lambda *where: _ascending(session, args, *where),
                lambda found: found[1],
                lambda found: found[0],
            )
        return page(
            args, lambda *where: fetch(session, args, *where), lambda found: found[1], position
        )


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


def position(found: FoundRecord) -> int:
    """Return a found record's position in its list."""
    return found[0].place.number


def _ascending(
    session: Session, args: Mapping[str, Any], after: UUID | None, limit: int
) -> feeds.Page[tuple[UUID, dict[str, Any]]]:
    """Return the same of `order=asc`, each with its id."""
    rows = records.rows(session, caller(), _filters(args), after or args.get("after"), limit)
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
