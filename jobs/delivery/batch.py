"""A batch: the rows of one claim, to be sent to one receiver."""

from collections import deque
from dataclasses import dataclass

from app.core.delivery.claims import Claimed
from jobs.delivery.attempt import Sender

# A POST in flight for this long and for twice the mean latency is stalled; others get the rest.
STALLED_SECONDS = 0.1


@dataclass(frozen=True)
class Batch:
    """The `unsent` deliveries of one claim, shared by two threads.

    The sending turn and the watchdog that finds it stalled both take rows; each row is taken once.

    `full`: more rows may wait; `ring`: another turn may send them. `leased_at` is the lease's start
    at the earliest: a reading of the monotonic clock from before the claim.
    """

    unsent: deque[Claimed]
    full: bool
    ring: bool
    sender: Sender
    leased_at: float

    @property
    def waits(self) -> bool:
        """Whether unsent rows are left."""
        return bool(self.unsent)

    @property
    def stalled_seconds(self) -> float:
        """How long a POST may be in flight before other workers get the rows behind it."""
        return max(STALLED_SECONDS, 2 * (self.sender.lane.latency_ms or 0) / 1000)

    def take(self) -> Claimed | None:
        """Take the next row to send; None when there is none."""
        try:
            return self.unsent.popleft()
        except IndexError:
            return None

    def take_rest(self) -> list[Claimed]:
        """Take all unsent rows."""
        taken = []
        while (row := self.take()) is not None:
            taken.append(row)
        return taken
