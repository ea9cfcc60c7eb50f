"""Storage limits of tenants: records and bytes, counted by triggers on `bundles`.

Counts are spread over several rows, so concurrent records do not wait for one. They are read
without a lock: concurrent records may exceed the limit by their own size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from psycopg import Cursor
from psycopg.rows import TupleRow
from sqlalchemy.orm import Session

from app.database import Tx, cursor
from app.errors import StorageLimit
from app.settings import Settings

MIB = 1024 * 1024

_TOTALS = "coalesce(sum(records), 0)::bigint, coalesce(sum(bytes), 0)::bigint FROM stored_records"
_OF_ONE = f"SELECT {_TOTALS} WHERE tenant_id = %s"
_OF_EACH = f"SELECT tenant_id, {_TOTALS} GROUP BY tenant_id"


@dataclass(frozen=True)
class StorageUse:
    """The number of a tenant's records, expired ones included, and the bytes of kept bundles."""

    records: int
    bytes: int


def use_of(tx: Tx, tenant_id: UUID) -> Cursor[TupleRow]:
    """Query a tenant's storage use; the statement is pipelined with the next one."""
    return cursor(tx).execute(_OF_ONE, (tenant_id,))


def require_room(used: Cursor[TupleRow], size: int, settings: Settings) -> None:
    """Raise `StorageLimit` if one more bundle of `size` bytes would exceed the tenant's limits."""
    (stored,) = [StorageUse(*row) for row in used.fetchall()]
    most_mib, most_records = settings.tenant_stored_mib, settings.tenant_records
    if most_mib and stored.bytes + size > most_mib * MIB:
        raise StorageLimit(
            f"The bundles of a tenant may come to {most_mib} MiB in all, and with this one they"
            " would be more. Shorten bundle_retention_days, or ask the operator of this service"
            " for a higher TENANT_STORED_MIB."
        )
    if most_records and stored.records >= most_records:
        raise StorageLimit(
            f"A tenant may have {most_records} records, expired ones included, and has them."
            " Ask the operator of this service for a higher TENANT_RECORDS."
        )


def of_each(session: Session) -> Mapping[UUID, StorageUse]:
    """Return the storage use of each tenant with records, in a session that sees all tenants."""
    found = cursor(session).execute(_OF_EACH).fetchall()
    return {tenant_id: StorageUse(*counts) for tenant_id, *counts in found}
