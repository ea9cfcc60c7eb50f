"""How a route opens a transaction: for the tenant of its caller."""

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
    """Open such a transaction without the ORM's session, which costs more than a few statements."""
    return services().database.raw_transaction(caller().tenant_id)


def statement() -> AbstractContextManager[RawTransaction]:
    """Open one for a hot route, whose work is one statement that also confirms the caller.

    With an Idempotency-Key there is more to do, also without the work: so a whole transaction.
    """
    database = services().database
    if not idempotency.may_be_repeated():
        return database.statement()
    return database.raw_transaction(confirmed_caller().tenant_id)
