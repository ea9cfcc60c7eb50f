"""A list of the console: its page, and as a file, CSV or NDJSON, what its filters select.

A file is read in pages by keyset, each in a short transaction of its own, so its memory does not
grow. It ends with a line that says that it is whole: one without was cut.
"""

import csv
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from itertools import chain
from operator import attrgetter
from typing import Any
from uuid import UUID

import marshmallow
from flask import Response, current_app, g, request
from sqlalchemy.orm import Session

from app import clock
from app.api.http.admission import truncated_stream
from app.api.http.large_work import NO_PLACE
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import caller, reads_objects, request_id, services, transaction
from app.console.frame import forms, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
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

Row = dict[str, Any]
Read = Callable[[Session, Mapping[str, Any], Any, int], Sequence[Any]]
Beside = Callable[[Session, dict[str, Any], dict[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Listed:
    """A list: how a page of it is read by its query, and how it is shown.

    `row` is the schema of a row in a file, of a list that has files and saved views; `named` are
    those parts of the rows shown whose ids are shown as names. `does` names the command and the
    route that do the same, `shown` what else its template shows. `beside` gets the session, the
    filters (none where any is wrong) and the list's page, and returns more of that. Of `breaks` one
    is shown as `broken`, in place of rows.
    """

    name: str
    read: Read
    show: Callable[[Any], Row]
    args: type[marshmallow.Schema] = PageArgs
    row: type[marshmallow.Schema] | None = None
    position: Callable[[Any], UUID | int] = attrgetter("id")
    named: Callable[[Sequence[Row]], Iterable[Mapping[str, Any]]] = lambda rows: rows
    template: str = ""
    does: tuple[str | None, str] | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)
    beside: Beside | None = None
    breaks: tuple[type[Exception], ...] = ()

    @reads_objects
    def page(self, form: Input | None = None, status: int = 200) -> Response:
        """Show the list as the URL filters it; `form` is the input of a form that its page has."""
        typed = forms.query()
        broken: Exception | None = None
        args: dict[str, Any] = {}
        found: dict[str, Any] = {"data": [], "next_cursor": None}
        more: Mapping[str, Any] = {}
        with transaction(snapshot=True) as session:
            try:
                with typed.refusing():
                    args = typed.load(self.args)
                    rows = partial(self.read, session, args)
                    found = page_of(args, rows, self.show, self.position)
            except self.breaks as error:
                broken = error
            names = rendering.names_in(session, *self.named(found["data"]), typed.typed)
            if self.beside is not None:
                more = self.beside(session, args, found)
        shown: dict[str, Any] = {"typed": typed, "form": form or forms.blank(), "found": found}
        shown |= {"names": names, "broken": broken}
        shown |= {} if self.does is None else {"does": self.does}
        shown |= {**self.shown, **more}
        return rendering.page(self.template or f"{self.name}/list", status, **shown)


LISTS: dict[str, Listed] = {}


def serve(
    blp: Pages,
    name: str,
    read: Read,
    path: str = "",
    role: Role = Role.READ,
    *,
    endpoint: str = "index",
    files: bool = False,
    **declared: Any,
) -> Listed:
    """Serve a list at a path; with `files` also its files, at `all.csv` and `all.ndjson` below.

    `declared` are members of `Listed`. Where `read` is an API's list, that has declared its query,
    its rows and what shows one, and `record-service NAME list` does the same.
    """
    if (told := getattr(read, "listed", None)) is not None:
        row = told.item if files else None
        own = {"show": told.represent, "args": told.args, "position": told.position, "row": row}
        declared = own | {"does": (f"{name} list", f"GET /v1/{name}")} | declared
    listed = Listed(name, read, **declared)

    @blp.page(path, role, endpoint=endpoint)
    def index() -> Response:
        """Show the list."""
        return listed.page()

    if listed.row is not None:
        LISTS[name] = listed
        download = partial(_answer, listed, listed.row)
        blp.page(f"{path}/all.<any(csv,ndjson):form>", endpoint="download_list")(download)
    return listed


def views_of(name: str) -> Sequence[Any]:
    """Return the saved views of a list, for its page."""
    with transaction() as session:
        return saved_views.rows(session, caller(), name)


def _answer(listed: Listed, row: type[marshmallow.Schema], form: str) -> Response:
    args = forms.query().without("limit", "cursor").load(listed.args)
    here, reader, application = services(), caller(), current_app.app_context().app
    columns = tuple(row().fields)

    def read(after: Any) -> tuple[list[dict[str, Any]], Any]:
        # A response is iterated after its request, and in other threads.
        with (
            application.app_context(),
            here.database.transaction(reader.tenant_id, snapshot=True) as session,
        ):
            g.caller = reader
            found = listed.read(session, args, after, _PART + 1)
            shown = [listed.show(row) for row in found[:_PART]]
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
                    shown, after = here.fetching(partial(read, after))
            except NoShare:
                raise Busy(NO_PLACE) from None
            count += len(shown)
            end = _end(form, count) if after is None else b""
            yield head + _written(form, columns, shown) + end
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


def _written(form: str, columns: Sequence[str], rows: Sequence[Row]) -> bytes:
    if form == "csv":
        return _csv([[_cell(row.get(name)) for name in columns] for row in rows])
    kept = ({name: row[name] for name in columns if name in row} for row in rows)
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in kept)


def _end(form: str, count: int) -> bytes:
    """Return the last line of a whole file."""
    if form == "csv":
        return _csv([[f"# complete: {count} rows"]])
    return json.dumps({"complete": True, "rows": count}).encode() + b"\n"


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
