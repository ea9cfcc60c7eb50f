"""Transactions of routes, for the tenant of the caller; reads that prefer a replica."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import ParamSpec, TypeVar

from flask import request
from sqlalchemy.orm import Session

from app.api.http.access.auth import caller
from app.api.http.services import services
from app.database import RawTransaction
from app.errors import Unavailable
from app.lib.database import replica

_P = ParamSpec("_P")
_R = TypeVar("_R")


def transaction(*, snapshot: bool = False) -> AbstractContextManager[Session]:
    """Open a transaction that sees the caller's tenant and commits when the block returns.

    With `snapshot` every statement sees the same moment.
    """
    return services().database.transaction(caller().tenant_id, snapshot=snapshot)


def raw_transaction() -> AbstractContextManager[RawTransaction]:
    """Open the same without the ORM's session, which costs more than a few statements."""
    return services().database.raw_transaction(caller().tenant_id)


def reads_objects(read: Callable[_P, _R]) -> Callable[_P, _R]:
    """Fetch what a function reads that lies in the object store, with no transaction open.

    Its transactions that lack an object are undone, and it runs again: until then it must do
    nothing that lasts.
    """

    @wraps(read)
    def fetching(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return services().fetching(lambda: read(*args, **kwargs))

    return fetching


def prefers_replica(view: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have the GETs of a view read from the replica, where one is set, fit and not behind.

    One that writes all the same, or that the replica fails, runs again on the primary.
    """

    @wraps(view)
    def read(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if request.method not in ("GET", "HEAD") or services().database.replica is None:
            return view(*args, **kwargs)
        with replica.preferred() as reading:
            try:
                return view(*args, **kwargs)
            except Unavailable:
                if not reading.from_replica:
                    raise
        return view(*args, **kwargs)

    return read
