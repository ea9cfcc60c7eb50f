"""Epochs: the name of this database's history, and from where on another one may differ.

A database that lost what it had accepted gives numbers a second time, to other events. So it begins
an epoch then (`app/core/log/history.py`), which each delivery names beside its number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row

from app import ids
from app.database import Tx, cursor

# An id is made before its transaction writes, and clocks of hosts differ (as in `event_feed`).
_BEFORE_WRITING = timedelta(seconds=60)

PRESENT = "SELECT id FROM epochs ORDER BY number DESC LIMIT 1"
_PRESENT = """
SELECT id, began_at, lost, accepted_at IS NOT NULL AS accepted
  FROM epochs ORDER BY number DESC LIMIT 1
"""
# Of several losses in a row the earliest counts.
_COMMON = """
SELECT min(common_until) FROM epochs
 WHERE number > (SELECT number FROM epochs WHERE id = %s)
"""


@dataclass(frozen=True)
class Epoch:
    """One epoch; `lost` is what is known of what it lost, as JSON, None of a database's first one.

    `accepted`: the loss is no news any more.
    """

    id: UUID
    began_at: datetime
    lost: Mapping[str, Any] | None
    accepted: bool

    @property
    def name(self) -> str:
        """The epoch as deliveries and feeds name it."""
        return ids.text("epo", self.id)


def present(tx: Tx) -> Epoch:
    """Return the epoch of this database."""
    found = cursor(tx, class_row(Epoch)).execute(_PRESENT).fetchone()
    if found is None:
        raise LookupError("the table epochs has lost its rows: restore it from a backup")
    return found


def first_apart(tx: Tx, known: UUID | None) -> UUID:
    """Return the least id of an event that a reader of the epoch `known` may have seen otherwise.

    Of an epoch that this database does not know, or None: any id.
    """
    row = cursor(tx).execute(_COMMON, (known,)).fetchone()
    until: datetime | None = None if row is None else row[0]
    if until is None:
        return UUID(int=0)
    first_wait: timedelta = tx.info["first_wait"]
    return ids.earliest_at(until - _BEFORE_WRITING - first_wait)
