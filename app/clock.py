"""The process's own clock, for times that are not stored.

Stored times are PostgreSQL's `clock_timestamp()`: hosts' clocks differ, and `now()` stands still
during a lock wait. Times of the process itself (a log line, a header) come from here.
"""

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """Write a moment as RFC 3339 in UTC with microseconds and `Z`: one form everywhere."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"
