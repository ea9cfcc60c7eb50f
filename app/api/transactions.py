"""How a route opens a transaction: for the tenant of its caller."""

from contextlib import AbstractContextManager

from sqlalchemy.orm import Session

from app.api.auth import caller
from app.api.services import services
from app.database import RawTransaction


def transaction(*, snapshot: bool = False) -> AbstractContextManager[Session]:
    """Open a transaction that sees the caller's tenant and commits when the block returns.

    With `snapshot` every statement sees the same moment.
    """
    return services().database.transaction(caller().tenant_id, snapshot=snapshot)


def raw_transaction() -> AbstractContextManager[RawTransaction]:
    """Open such a transaction for a hot route: raw SQL, without the ORM's session."""
    return services().database.raw_transaction(caller().tenant_id)
