"""Filters of deliveries, as SQL conditions over `deliveries AS d`.

Ids encode time, so a time range is a range of ids, which prunes partitions. The exact bound is
`created_at`, because ids come from the clocks of different hosts.
"""

import enum
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from app import ids
from app.core.delivery.history.delivery_attempts import CLOCKS_DIFFER_BY


class Status(enum.StrEnum):
    """Statuses of a delivery."""

    PENDING = "pending"
    SENDING = "sending"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FAILING = frozenset({Status.FAILED, Status.RETRYING})
OPEN = frozenset({Status.PENDING, Status.SENDING, Status.RETRYING})

# A row whose worker died (lease over) reads as waiting for the next worker.
STATUS = """
CASE WHEN d.status <> 'sending' OR d.next_attempt_at > clock_timestamp() THEN d.status
     WHEN d.attempts = 0 THEN 'pending' ELSE 'retrying' END
"""

# The first condition has PostgreSQL leave out what has ended.
IS_OPEN = f"d.finished_at IS NULL AND ({STATUS}) = ANY (%(open)s)"


# The newest delivery of an event to a webhook: no later replay exists, cancelled replays aside.
# A lane without replays costs no further probe.
LATEST = """
NOT EXISTS (
    SELECT FROM lanes AS l CROSS JOIN LATERAL (
        SELECT FROM deliveries AS r
         WHERE r.tenant_id = (SELECT %(tenant)s::uuid) AND r.webhook_id = d.webhook_id
           AND r.kind = 'replay' AND r.event_id = d.event_id AND r.status <> 'cancelled'
           AND r.id <> d.id AND (d.kind <> 'replay' OR r.id > d.id)
         LIMIT 1) AS later
     WHERE l.tenant_id = (SELECT %(tenant)s::uuid) AND l.webhook_id = d.webhook_id
       AND l.replays_accepted > 0)
"""


@dataclass(frozen=True)
class Group:
    """Failures of one webhook with one fingerprint."""

    webhook_id: UUID
    failure: int

    @property
    def text(self) -> str:
        """The group's id in the API (`grp_…`)."""
        return f"grp_{self.webhook_id.hex}{self.failure % 2**64:016x}"

    @classmethod
    def parse(cls, text: str) -> "Group | None":
        """Parse a group's id; None when it is not one."""
        match = _GROUP.fullmatch(text)
        if match is None:
            return None
        unsigned = int(match[2], 16)
        return cls(UUID(hex=match[1]), unsigned - (unsigned >> 63 << 64))


_GROUP = re.compile(r"grp_([0-9a-f]{32})([0-9a-f]{16})", re.ASCII)


@dataclass(frozen=True)
class Filters:
    """Filters of a list of deliveries; empty ones are ignored. What ends in `until` is exclusive.

    `outcome` and `status_code` are those of the last attempt; `session_id`, `record_id` and
    `finding_id` name the event's subject.
    """

    status: frozenset[Status] = frozenset()
    event_type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    outcome: str | None = None
    status_code: int | None = None
    webhook_id: UUID | None = None
    job_id: UUID | None = None
    group: Group | None = None
    event_id: UUID | None = None
    session_id: UUID | None = None
    record_id: UUID | None = None
    finding_id: UUID | None = None
    finished_since: datetime | None = None
    finished_until: datetime | None = None


def conditions(filters: Filters) -> tuple[list[str], dict[str, object]]:
    """Return the SQL conditions of all filters but the status, with their values."""
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
    if filters.finished_since is not None:
        found.append("d.finished_at >= %(finished_since)s")
        values["finished_since"] = filters.finished_since
    if filters.finished_until is not None:
        found += ["d.finished_at < %(finished_until)s", "d.id < %(finished_until_id)s"]
        values |= {
            "finished_until": filters.finished_until,
            "finished_until_id": latest_id(filters.finished_until),
        }
    if filters.outcome is not None:
        found += _ended_as(filters.outcome)
        values["outcome"] = filters.outcome
    equal = {
        "status_code": filters.status_code,
        "webhook_id": filters.webhook_id,
        "job_id": filters.job_id,
    }
    for name, value in equal.items():
        if value is not None:
            # `(SELECT …)` hides the value from the planner (docs/performance.md).
            found.append(f"d.{name} = (SELECT %({name})s)")
            values[name] = value
    if filters.group is not None:
        found += ["d.webhook_id = (SELECT %(group_of)s::uuid)", "d.kind <> 'test'", LATEST]
        found.append("d.failure = %(failure)s")
        values |= {"group_of": filters.group.webhook_id, "failure": filters.group.failure}
    return found, values


def _ended_as(outcome: str) -> list[str]:
    if outcome == "succeeded":
        return ["d.status = 'succeeded'"]
    return ["d.outcome = %(outcome)s", "d.status <> 'succeeded'"]


def earliest_id(since: datetime) -> UUID:
    """Return a lower bound of the ids of rows made at or after `since`, on any host's clock."""
    return ids.earliest_at(_shift(since, -CLOCKS_DIFFER_BY))


def latest_id(until: datetime) -> UUID:
    """Return an upper bound (exclusive) of the ids of rows made before `until`, on any clock."""
    return ids.earliest_at(_shift(until, CLOCKS_DIFFER_BY))


def _shift(moment: datetime, by: timedelta) -> datetime:
    try:
        return moment + by
    except OverflowError:
        return moment
