"""Storage limits of tenants: records and bytes, counted by triggers on `bundles`.

Counts are spread over several rows, so concurrent records do not wait for one. `add_records` reads
them without a lock: concurrent records may exceed the limit by their own size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from app.database import cursor

MIB = 1024 * 1024

_OF_EACH = """
SELECT tenant_id, sum(records)::bigint, sum(bytes)::bigint FROM stored_records GROUP BY tenant_id
"""


@dataclass(frozen=True)
class StorageUse:
    """The number of a tenant's records, expired ones included, and the bytes of kept bundles."""

    records: int
    bytes: int


def of_each(session: Session) -> Mapping[UUID, StorageUse]:
    """Return the storage use of each tenant with records, in a session that sees all tenants."""
    found = cursor(session).execute(_OF_EACH).fetchall()
    return {tenant_id: StorageUse(*counts) for tenant_id, *counts in found}
