"""Shared by the lists of agents, sessions, records and findings: visibility, filters, time ranges.

All tables carry `tenant_id` and an id whose first bits are its `created_at`, and all but agents
`agent_id` and `principal`: so one statement serves all. Every filter of a feed has an index that
ends in `id`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, Protocol, TypeAlias, TypeVar, cast
from uuid import UUID

from sqlalchemy import ColumnElement, Select, SQLColumnExpression, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app import ids
from app.core.callers import Caller
from app.errors import NotFound
from app.models import Agent, AgentSession, Base, Finding, Record

_Row = TypeVar("_Row", Agent, AgentSession, Finding, Record)
_WithMetadata = TypeVar("_WithMetadata", Agent, AgentSession)
_Listed = TypeVar("_Listed", bound="Identified")
_Any = TypeVar("_Any")
_Named = TypeVar("_Named", bound=Base)
_Model: TypeAlias = type[Agent] | type[AgentSession] | type[Finding] | type[Record]


class Identified(Protocol):
    """A row of a list, which is ordered by its id."""

    @property
    def id(self) -> UUID:
        """Its position."""


# 200 findings may have 50 MiB of data, and parsed JSON takes many times that memory.
MOST_JSON = 4 * 1024 * 1024


class Page(list[_Any]):
    """Rows of one page; `read_to` is the last position if reading ended before it was full."""

    def __init__(self, rows: Iterable[_Any], read_to: UUID | int | None = None) -> None:
        """Take the rows."""
        super().__init__(rows)
        self.read_to = read_to


def fitting(found: Sequence[_Listed], text: Callable[[_Listed], str | None]) -> Sequence[_Listed]:
    """Return the first rows whose `text` results total at most 4 MiB, at least one row."""
    before = accumulate((len(text(each) or "") for each in found), initial=0)
    kept = [each for each, size in zip(found, before, strict=False) if size < MOST_JSON]
    return found if len(kept) == len(found) else Page(kept, kept[-1].id)


def visible(model: _Model, caller: Caller) -> list[ColumnElement[bool]]:
    """Return the conditions that hold for every row the caller may see: tenant, then pin."""
    pin, of = caller.pin, [model.tenant_id == caller.tenant_id]
    if pin is None:
        return of
    if model is Agent:
        return [*of, Agent.id == pin.agent_id]
    owned = cast(type[AgentSession], model)
    return [*of, owned.agent_id == pin.agent_id, owned.principal == pin.principal]


def newest(
    model: type[_Row],
    caller: Caller,
    filters: Mapping[str, object],
    before: UUID | None,
    limit: int,
) -> Select[_Row]:
    """Return the statement for one page of rows that the caller may see, newest first.

    `filters` maps columns to the values they must equal; `since` (inclusive) and `until`
    (exclusive), aware datetimes, bound `created_at`; `occurred_since` and `occurred_until` bound a
    record's `occurred_at`. A filter of None is ignored.
    `before` is the cursor: the last id of the previous page.
    """
    found = conditions(model, caller, filters)
    if before is not None:
        found.append(model.id < before)
    return select(model).where(*found).order_by(model.id.desc()).limit(limit)


def conditions(
    model: _Model, caller: Caller, filters: Mapping[str, object]
) -> list[ColumnElement[bool]]:
    """Return the conditions of visibility and of the filters of `newest`."""
    found = visible(model, caller)
    for name, value in filters.items():
        if value is not None:
            found += _conditions(model, name, value)
    return found


# So many names are read in some 20 ms; a page that has read them ends, and the next goes on.
MOST_NAMES = 20_000


def parts(typed: str) -> list[str]:
    """Return the LIKE patterns of lower-case text that contains every word of `typed`."""
    escaped = (re.sub(r"[\\%_]", r"\\\g<0>", word) for word in typed.lower().split())
    return [f"%{word}%" for word in escaped]


def named(
    session: Session,
    rows: Select[_Named],
    column: InstrumentedAttribute[UUID],
    text: SQLColumnExpression[str],
    typed: str,
    before: UUID | None,
    limit: int,
) -> Page[_Named]:
    """Return one page of `rows` whose `text` contains every word of `typed`, newest first.

    `column` is their id. At most `MOST_NAMES` are read for a page, which then may end early.
    """
    if before is not None:
        rows = rows.where(column < before)
    newest = (
        rows.with_only_columns(column, func.lower(text).label("text"))
        .order_by(column.desc())
        .limit(MOST_NAMES)
        .cte("newest")
        .prefix_with("MATERIALIZED", dialect="postgresql")
    )
    fits = [newest.c.text.like(pattern) for pattern in parts(typed)]
    ids_of = select(newest.c.id).where(*fits).order_by(newest.c.id.desc()).limit(limit)
    found = session.scalars(rows.where(column.in_(ids_of)).order_by(column.desc())).all()
    if len(found) == limit:
        return Page(found)
    last = select(newest.c.id).order_by(newest.c.id.desc()).offset(MOST_NAMES - 1).limit(1)
    return Page(found, session.scalar(last))


def page(
    session: Session,
    model: type[_WithMetadata],
    caller: Caller,
    filters: Mapping[str, object],
    before: UUID | None,
    limit: int,
    text: SQLColumnExpression[str],
) -> Sequence[_WithMetadata]:
    """Return one page of `newest`; the words of the filter `q` must all be in `text` (`named`)."""
    others = {name: value for name, value in filters.items() if name != "q"}
    if "q" in filters:
        rows = select(model).where(*conditions(model, caller, others))
        typed = str(filters["q"])
        found: Sequence[Any] = named(session, rows, model.id, text, typed, before, limit)
    else:
        found = session.scalars(newest(model, caller, others, before, limit)).all()
    return fitting(found, lambda each: each.metadata_json)


def find(
    session: Session,
    model: type[_Row],
    caller: Caller,
    row_id: UUID | None,
    missing: str,
    *,
    lock: bool = False,
) -> _Row:
    """Return one row that the caller may see; raises `NotFound` with the text `missing`."""
    wanted = select(model).where(*visible(model, caller), model.id == row_id)
    found = session.scalar(wanted.with_for_update(key_share=True) if lock else wanted)
    if found is None:
        raise NotFound(missing)
    return found


def _conditions(model: _Model, name: str, value: object) -> list[ColumnElement[bool]]:
    # An id has millisecond precision only: it bounds the index scan, and created_at decides.
    if name == "since" and isinstance(value, datetime):
        return [model.created_at >= value, model.id >= ids.earliest_at(value)]
    if name == "until" and isinstance(value, datetime):
        return [model.created_at < value, model.id <= ids.latest_at(value)]
    if name == "occurred_since":
        return [Record.occurred_at >= value]
    if name == "occurred_until":
        return [Record.occurred_at < value]
    column: ColumnElement[object] = getattr(model, name)
    return [column == value]
