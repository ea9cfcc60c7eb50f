"""Cursor pagination: lists in pages that stay consistent while rows are inserted.

A cursor is the position of the last returned row, sealed for this tenant, path and filters. So it
is opaque, cannot be forged, and is refused by any other list.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import marshmallow
from flask import Response, request

from app.api.http.answers import answer
from app.api.http.services import caller, services
from app.core import feeds
from app.errors import FieldError, Invalid
from app.lib.crypto.sealing import CannotOpen
from app.schemas import fields
from app.schemas.fields import Described, Items, Object, QueryInteger, Text
from app.schemas.schema import AnswerSchema, Schema

DEFAULT_LIMIT = 50
MAX_LIMIT = 200

_Row = TypeVar("_Row")

_FOREIGN = "Query parameter: This cursor is not from this list; leave it out to begin anew."


class PageArgs(Schema):
    """The query parameters of every list; a list with filters derives from it."""

    limit = QueryInteger(
        1,
        MAX_LIMIT,
        load_default=DEFAULT_LIMIT,
        metadata={"description": "The largest number of items.", "default": DEFAULT_LIMIT},
    )
    cursor = Text(1000, description="`next_cursor` of the last page; absent: the first page.")


def page_schema(item: type[Schema], **beside: Described) -> type[marshmallow.Schema]:
    """Return the schema of one page of a list: of `AgentSchema`, `AgentPageSchema`.

    `beside` are further members of the answer.
    """
    members: dict[str, marshmallow.fields.Field[Any]] = {
        "data": Items(Object(item), max_items=MAX_LIMIT),
        "next_cursor": Text(1000, allow_none=True),
        **beside,
    }
    return AnswerSchema.from_dict(members, name=f"{item.__name__.removesuffix('Schema')}PageSchema")


def page(
    args: Mapping[str, Any],
    fetch: Callable[[Any, int], Sequence[_Row]],
    represent: Callable[[_Row], dict[str, Any]],
    position: Callable[[_Row], UUID | int] = attrgetter("id"),
    beside: Callable[[list[dict[str, Any]]], Mapping[str, Any]] = lambda _: {},
) -> Response:
    """Answer one page of a list, as `page_of` returns it.

    `beside` returns further members of the answer from its `data`.
    """
    found = page_of(args, fetch, represent, position)
    cursor = found["next_cursor"]
    headers = {}
    if cursor is not None:
        kept = [item for item in request.args.items(multi=True) if item[0] != "cursor"]
        query = urlencode([*kept, ("cursor", cursor)])
        url = f"{services().settings.base_url}{request.path}?{query}"
        headers = {"Link": f'<{url}>; rel="next"'}
    return answer({**found, **beside(found["data"])}, headers=headers)


def page_of(
    args: Mapping[str, Any],
    fetch: Callable[[Any, int], Sequence[_Row]],
    represent: Callable[[_Row], dict[str, Any]],
    position: Callable[[_Row], UUID | int] = attrgetter("id"),
) -> dict[str, Any]:
    """Return one page of a list: `data`, and the `next_cursor` if there is more.

    `fetch(after, limit)` returns at most `limit` rows that come after the row at `after` (a
    `position`, or None for the first page) in the list's own order; a `feeds.Page` may end early.
    Raises `Invalid` for a cursor that was not given out for this list.
    """
    limit = int(args["limit"])
    rows = fetch(_read_cursor(args), limit + 1)
    last: UUID | int | None = rows.read_to if isinstance(rows, feeds.Page) else None
    if len(rows) > limit:
        last = position(rows[limit - 1])
    cursor = None
    if last is not None:
        text = f"u{last.hex}" if isinstance(last, UUID) else f"i{last}"
        cursor = seal_position(text, _identity(args))
    return {"data": [represent(row) for row in rows[:limit]], "next_cursor": cursor}


def seal_position(text: str, identity: str) -> str:
    """Return a position as an opaque token that opens only with `identity` (tenant and list)."""
    sealed = services().settings.master_keys.seal(text.encode(), identity)
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def open_position(token: str, identity: str) -> str | None:
    """Return the text given to `seal_position`; None for any token not sealed for `identity`."""
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        return services().settings.master_keys.open(sealed, identity).decode()
    except (ValueError, CannotOpen):
        return None


def _read_cursor(args: Mapping[str, Any]) -> UUID | int | None:
    cursor = args.get("cursor")
    if cursor is None:
        return None
    text = open_position(cursor, _identity(args))
    if text is None:
        raise Invalid(FieldError("/cursor", _FOREIGN))
    return UUID(hex=text[1:]) if text.startswith("u") else int(text[1:])


def _identity(args: Mapping[str, Any]) -> str:
    """Name the list by tenant, path and filters (the limit may change from page to page)."""
    filters = {name: str(args[name]) for name in sorted(args.keys() - {"limit", "cursor"})}
    return f"cursor/{caller().tenant_id}{request.path}?{urlencode(filters)}"


class FeedArgs(PageArgs):
    """Filters of a feed; all given must match."""

    agent_id = fields.Id("agt")
    principal = fields.Text(200)
    since = fields.Time(description="Created at this moment or later.")
    until = fields.Time(description="Created before this moment.")


def filters(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the filters among a list's query parameters: all but `limit` and `cursor`."""
    return {name: value for name, value in args.items() if name not in ("limit", "cursor")}
