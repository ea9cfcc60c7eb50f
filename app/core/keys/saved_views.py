"""Saved views: the filters of a list under a name, for everybody of a tenant.

They are no audited act: one changes neither data nor access, and its filters are in its URL.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from app import ids
from app.core.callers import Caller
from app.errors import FieldError, Invalid, NotFound
from app.models import SavedView

MOST = 100
_TAKEN = "Another view of this list has this name."


def rows(session: Session, caller: Caller, page: str | None = None) -> Sequence[SavedView]:
    """Return the views of one list, or of all, by their names; at most `MOST`."""
    wanted = select(SavedView).where(SavedView.tenant_id == caller.tenant_id)
    if page is not None:
        wanted = wanted.where(SavedView.page == page)
    wanted = wanted.order_by(SavedView.page, SavedView.name, SavedView.id).limit(MOST)
    return session.scalars(wanted).all()


def create(session: Session, caller: Caller, page: str, name: str, query: str) -> SavedView:
    """Keep the filters of a list; raises `Invalid` for a name that is taken, or too many views."""
    mine = SavedView.tenant_id == caller.tenant_id
    if (session.scalar(select(func.count()).where(mine)) or 0) >= MOST:
        raise Invalid(FieldError("/name", f"A tenant has at most {MOST} views: delete one."))
    made = SavedView(
        tenant_id=caller.tenant_id,
        id=ids.new(),
        page=page,
        name=name,
        query=query,
        created_by=caller.key_id,
    )
    session.add(made)
    _flush(session)
    return made


def rename(session: Session, caller: Caller, view_id: UUID | None, name: str) -> SavedView:
    """Give a view another name. Raises `NotFound`, and `Invalid` for a name that is taken."""
    view = _find(session, caller, view_id)
    view.name = name
    _flush(session)
    return view


def delete(session: Session, caller: Caller, view_id: UUID | None) -> str:
    """Delete a view; return its name. Raises `NotFound`."""
    view = _find(session, caller, view_id)
    session.delete(view)
    session.flush()
    return view.name


def _find(session: Session, caller: Caller, view_id: UUID | None) -> SavedView:
    mine = (SavedView.tenant_id == caller.tenant_id, SavedView.id == view_id)
    found = session.scalar(select(SavedView).where(*mine).with_for_update())
    if found is None:
        raise NotFound("There is no view with this id.")
    return found


def _flush(session: Session) -> None:
    try:
        session.flush()
    except IntegrityError as error:
        raise Invalid(FieldError("/name", _TAKEN)) from error
