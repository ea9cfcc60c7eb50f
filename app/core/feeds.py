"""Shared by the feeds of sessions, records and findings: visibility, filters and time ranges.

All three tables carry `tenant_id`, `agent_id`, `principal` and an id whose first bits are its
`created_at`, so one statement serves all, and every filter has an index that ends in `id`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import TypeAlias, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from app import ids
from app.core.callers import Caller
from app.errors import NotFound
from app.models import Agent, AgentSession, Finding, Record

_Row = TypeVar("_Row", AgentSession, Finding, Record)
_Listed = TypeVar("_Listed", Agent, AgentSession, Finding)
_Any = TypeVar("_Any")
_Model: TypeAlias = type[AgentSession] | type[Finding] | type[Record]


# 200 findings may have 50 MiB of data, which is many times as large once it is read as JSON.
MOST_JSON = 4 * 1024 * 1024


class Page(list[_Any]):
    """Rows of one page; `read_to` is the id at which reading ended early, though there is room."""

    def __init__(self, rows: Iterable[_Any], read_to: UUID | None = None) -> None:
        """Take the rows."""
        super().__init__(rows)
        self.read_to = read_to


def fitting(found: Sequence[_Listed], text: Callable[[_Listed], str | None]) -> Sequence[_Listed]:
    """Return the rows of a page up to 4 MiB of what `text` returns for each, one row at least."""
    before = accumulate((len(text(each) or "") for each in found), initial=0)
    kept = [each for each, size in zip(found, before, strict=False) if size < MOST_JSON]
    return found if len(kept) == len(found) else Page(kept, kept[-1].id)


def visible(model: _Model, caller: Caller) -> list[ColumnElement[bool]]:
    """Return the conditions that hold for every row the caller may see: tenant, then pin."""
    conditions = [model.tenant_id == caller.tenant_id]
    if caller.pin is not None:
        conditions += [
            model.agent_id == caller.pin.agent_id,
            model.principal == caller.pin.principal,
        ]
    return conditions


def newest(
    model: type[_Row],
    caller: Caller,
    filters: Mapping[str, object],
    before: UUID | None,
    limit: int,
) -> Select[_Row]:
    """Return the statement for one page of a feed, newest first, of what the caller may see.

    `filters` names columns with the value each must equal, and `since` (included) and `until` (not
    included), aware moments that `created_at` is held against; one that is None holds nothing back.
    `before` is the id where the page before ended.
    """
    conditions = visible(model, caller)
    for name, value in filters.items():
        if value is not None:
            conditions += _conditions(model, name, value)
    if before is not None:
        conditions.append(model.id < before)
    return select(model).where(*conditions).order_by(model.id.desc()).limit(limit)


def find(
    session: Session, model: type[_Row], caller: Caller, row_id: UUID | None, missing: str
) -> _Row:
    """Return one row that the caller may see; raises `NotFound`, with this text, without one."""
    found = session.scalar(select(model).where(*visible(model, caller), model.id == row_id))
    if found is None:
        raise NotFound(missing)
    return found


def _conditions(model: _Model, name: str, value: object) -> list[ColumnElement[bool]]:
    # An id knows its millisecond only: it bounds the walk along the index, created_at decides.
    if name == "since" and isinstance(value, datetime):
        return [model.created_at >= value, model.id >= ids.earliest_at(value)]
    if name == "until" and isinstance(value, datetime):
        return [model.created_at < value, model.id <= ids.latest_at(value)]
    column: ColumnElement[object] = getattr(model, name)
    return [column == value]
