"""Filters of deliveries, as conditions of SQL over `deliveries AS d`.

Ids are time, so a range of time is a range of ids, which prunes partitions. The exact bound is
`created_at`: the hosts that make ids have clocks of their own.
"""

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app import ids
from app.core.delivery.history.delivery_attempts import CLOCKS_DIFFER_BY


class Status(enum.StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    SENDING = "sending"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN = frozenset({Status.PENDING, Status.SENDING, Status.RETRYING})

# A row whose worker died reads as what it is: waiting for the next one.
STATUS = """
CASE WHEN d.status <> 'sending' OR d.next_attempt_at > clock_timestamp() THEN d.status
     WHEN d.attempts = 0 THEN 'pending' ELSE 'retrying' END
"""

# In the words of the partial indexes that serve them.
IS_OPEN = f"d.finished_at IS NULL AND ({STATUS}) = ANY (%(open)s)"
_STATUS_IN = f"({IS_OPEN} OR d.status = ANY (%(ended)s))"


@dataclass(frozen=True)
class Filters:
    """Which deliveries to list; an empty one holds nothing back. `until` is not included.

    `outcome` and `status_code` are of the last attempt.
    """

    status: frozenset[Status] = frozenset()
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    outcome: str | None = None
    status_code: int | None = None


def conditions(filters: Filters) -> tuple[list[str], dict[str, object]]:
    """Return what every delivery listed must fulfil, and the values that are named in it."""
    found, values = other_conditions(filters)
    if filters.status:
        found.append(_STATUS_IN)
        values["open"] = sorted(status.value for status in filters.status & OPEN)
        values["ended"] = sorted(status.value for status in filters.status - OPEN)
    return found, values


def other_conditions(filters: Filters) -> tuple[list[str], dict[str, object]]:
    """Return the same but for the status."""
    found: list[str] = []
    values: dict[str, object] = {}
    if filters.event_type is not None:
        found.append("d.event_type = %(event_type)s")
        values["event_type"] = filters.event_type
    if filters.since is not None:
        found += ["d.created_at >= %(since)s", "d.id >= %(since_id)s"]
        values |= {"since": filters.since, "since_id": earliest_id(filters.since)}
    if filters.until is not None:
        found += ["d.created_at < %(until)s", "d.id < %(until_id)s"]
        values |= {"until": filters.until, "until_id": latest_id(filters.until)}
    if filters.outcome == "succeeded":
        found.append("d.status = 'succeeded'")
    elif filters.outcome is not None:
        found += ["d.outcome = %(outcome)s", "d.status <> 'succeeded'"]
        values["outcome"] = filters.outcome
    if filters.status_code is not None:
        found.append("d.status_code = %(status_code)s")
        values["status_code"] = filters.status_code
    return found, values


def earliest_id(since: datetime) -> UUID:
    """Return an id that no row made at `since` or later is below, on any host's clock."""
    return ids.earliest_at(_shift(since, -CLOCKS_DIFFER_BY))


def latest_id(until: datetime) -> UUID:
    """Return an id that every row made before `until` is below, on any host's clock."""
    return ids.earliest_at(_shift(until, CLOCKS_DIFFER_BY))


def _shift(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return moment
