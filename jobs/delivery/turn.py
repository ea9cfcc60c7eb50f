"""The state of a turn at a lane that its attempts share."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from app.core.delivery.lanes.lanes import Lane


@dataclass(frozen=True)
class Turn:
    """The lane as it was at the claim, and how the worker came to it.

    `loaded_at` is the monotonic clock's reading at the lane's `now`; `slot` and `passed_on` are for
    the log alone.
    """

    lane: Lane
    loaded_at: float
    slot: int | None
    passed_on: int

    def moment(self, monotonic: float) -> datetime:
        """Return the database's time at a reading of `time.monotonic()`, in seconds."""
        return self.lane.now + timedelta(seconds=monotonic - self.loaded_at)
