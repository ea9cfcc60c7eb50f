"""Rows that were claimed together, on their way to one receiver."""

from collections import deque
from collections.abc import Iterable

from app.core.delivery.claims import Claimed
from app.core.delivery.lanes.lanes import Lane
from jobs.delivery.attempt import Sender

# A POST that is out for so long, and for twice as long as usual, keeps nothing waiting behind it.
STALLED_SECONDS = 0.1


class Batch:
    """The deliveries of one claim, and the threads that send them.

    The turn that sends and the watchdog that finds it stalled both take rows: each goes one way.
    """

    def __init__(
        self,
        lane: Lane,
        claimed: Iterable[Claimed],
        *,
        full: bool,
        ring: bool,
        sender: Sender,
        leased_at: float,
    ) -> None:
        """`full` says that more rows may wait, `ring` that another turn may send them.

        `leased_at` is when the lease began, at the latest: a reading of the steady clock from
        before the claim.
        """
        self.lane = lane
        self.full = full
        self.ring = ring
        self.sender = sender
        self.leased_at = leased_at
        self._unsent = deque(claimed)

    @property
    def waits(self) -> bool:
        """Whether something is not sent yet."""
        return bool(self._unsent)

    @property
    def stalled_seconds(self) -> float:
        """How long a POST may be out before the rows behind it are given to others."""
        return max(STALLED_SECONDS, 2 * (self.lane.latency_ms or 0) / 1000)

    def take(self) -> Claimed | None:
        """Take the next row to send; None when there is none."""
        try:
            return self._unsent.popleft()
        except IndexError:
            return None

    def take_rest(self) -> list[Claimed]:
        """Take all that is not sent yet."""
        taken = []
        while (row := self.take()) is not None:
            taken.append(row)
        return taken
