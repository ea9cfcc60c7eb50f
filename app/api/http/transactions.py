"""Transactions of routes, for the tenant of the caller."""

from contextlib import AbstractContextManager

from sqlalchemy.orm import Session

from app.api.http import idempotency
from app.api.http.access.auth import caller, confirmed_caller
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


def statement() -> AbstractContextManager[RawTransaction]:
    """Open an autocommit statement for a hot route; the statement also confirms the caller.

    With an Idempotency-Key a full transaction is opened, since the key takes further statements.
    """
    database = services().database
    if not idempotency.may_be_repeated():
        return database.statement()
    return database.raw_transaction(confirmed_caller().tenant_id)
