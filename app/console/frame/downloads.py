"""A list of the console as a file: CSV or NDJSON of what its filters select, and its saved views.

A file is read in pages by keyset, each in a short transaction of its own, so its memory does not
grow. It ends with a line that says that it is whole: one without was cut.
"""

import csv
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import StringIO
from itertools import chain
from operator import attrgetter
from typing import Any
from uuid import UUID

import marshmallow
from flask import Blueprint, Response, current_app, g, request
from sqlalchemy.orm import Session

from app import clock
from app.api.http.admission import truncated_stream
from app.api.http.large_work import NO_PLACE
from app.api.http.services import caller, request_id, services, transaction
from app.console.frame import forms
from app.console.frame.access import signed_in
from app.core import feeds
from app.core.callers import Role
from app.core.keys import saved_views
from app.errors import Busy
from app.lib.fair_shares import NoShare

# Rows of one transaction, and how long a file may take.
_PART, _SECONDS = 500, 600
_TYPES = {"csv": "text/csv; charset=utf-8", "ndjson": "application/x-ndjson"}
# A spreadsheet runs a cell that begins so (OWASP, CSV injection); a quote before it stops that.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")

Read = Callable[[Session, Mapping[str, Any], Any, int], Sequence[Any]]


@dataclass(frozen=True)
class Listed:
    """A list: the schemas of its query and of a row, and how a page of it is read and shown."""

    name: str
    endpoint: str
    args: type[marshmallow.Schema]
    row: type[marshmallow.Schema]
    read: Read
    show: Callable[[Session, Any], dict[str, Any]]
    position: Callable[[Any], UUID | int] = attrgetter("id")


LISTS: dict[str, Listed] = {}


def offer(blp: Blueprint, listed: Listed, path: str = "", *, whole_tenant: bool = False) -> None:
    """Let a list be downloaded, at `path` and `all.csv` or `all.ndjson`, and have saved views."""
    LISTS[listed.name] = listed

    def download(form: str) -> Response:
        return _answer(listed, form)

    download.__doc__ = "Download the list as a file."
    rule = signed_in(Role.READ, whole_tenant=whole_tenant)
    blp.get(f"{path}/all.<any(csv,ndjson):form>", endpoint="download_list")(rule(download))


def views_of(name: str) -> Sequence[Any]:
    """Return the saved views of a list, for its page."""
    with transaction() as session:
        return saved_views.rows(session, caller(), name)


def _answer(listed: Listed, form: str) -> Response:
    args = forms.query().without("limit", "cursor").load(listed.args)
    here, reader, application = services(), caller(), current_app.app_context().app
    columns = tuple(listed.row().fields)
    encode = partial(_csv_lines, columns) if form == "csv" else _json_lines

    def read(after: Any) -> tuple[list[dict[str, Any]], Any]:
        # A response is iterated after its request, and in other threads.
        with (
            application.app_context(),
            here.database.transaction(reader.tenant_id, snapshot=True) as session,
        ):
            g.caller = reader
            found = listed.read(session, args, after, _PART + 1)
            shown = [listed.show(session, row) for row in found[:_PART]]
        follows = found.read_to if isinstance(found, feeds.Page) else None
        if len(found) > _PART:
            follows = listed.position(found[_PART - 1])
        return shown, follows

    def parts() -> Iterator[bytes]:
        until, after, count = time.monotonic() + _SECONDS, None, 0
        head = _csv([columns]) if form == "csv" else b""
        while True:
            # All files together take no more places than other large work.
            try:
                with here.large.held(reader.tenant_id, unqueued=True):
                    # Later parts are read after `dispatch_request`, which fetches for the first.
                    shown, after = here.fetching(partial(read, after))
            except NoShare:
                raise Busy(NO_PLACE) from None
            count += len(shown)
            end = _end(form, count) if after is None else b""
            yield head + encode(shown) + end
            head = b""
            if after is None or time.monotonic() >= until:
                return

    name = f"{listed.name}-{clock.now():%Y%m%dT%H%M%SZ}.{form}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    if request.method == "HEAD":
        return Response(content_type=_TYPES[form], headers=headers)
    pieces = parts()
    # Before the first byte leaves, what is wrong can still be answered as a page.
    told = chain([next(pieces)], pieces)
    whole = truncated_stream(told, request_id(), lambda _: False)
    return Response(whole, content_type=_TYPES[form], headers=headers)


def _end(form: str, count: int) -> bytes:
    """Return the last line of a whole file."""
    if form == "csv":
        return _csv([[f"# complete: {count} rows"]])
    return json.dumps({"complete": True, "rows": count}).encode() + b"\n"


def _json_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def _csv_lines(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    return _csv([[_cell(row.get(name)) for name in columns] for row in rows])


def _cell(value: object) -> str:
    """Return the text of a cell: what is no text or number as JSON, and no formula."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    is_formula = isinstance(value, str) and text.startswith(_FORMULA)
    return f"'{text}" if is_formula else text


def _csv(rows: Sequence[Sequence[str]]) -> bytes:
    text = StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()
