"""Transactions of routes, for the tenant of the caller."""

from contextlib import AbstractContextManager

from sqlalchemy.orm import Session

from app.api.http.access.auth import caller
from app.api.http.services import services
from app.database import RawTransaction


def transaction(*, snapshot: bool = False) -> AbstractContextManager[Session]:
    """Open a transaction that sees the caller's tenant and commits when the block returns.

    With `snapshot` every statement sees the same moment.
    """
    return services().database.transaction(caller().tenant_id, snapshot=snapshot)


def raw_transaction() -> AbstractContextManager[RawTransaction]:
    """Open the same without the ORM's session, which costs more than a few statements."""
    return services().database.raw_transaction(caller().tenant_id)
