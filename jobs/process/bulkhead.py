"""The bulkhead: each tenant's share of a worker process's threads; and lanes that take no more.

Two threads are kept for jobs. A tenant takes no further permit while it holds more than are free
(dynamic threshold, Choudhury and Hahne 1998), and its last one only at a lane that has none. Slow
lanes use two thirds of the threads at most, and are counted by themselves.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from app.queue import LaneKey

KEPT_FOR_JOBS = 2
# What a claim should be sent in.
_FULL_SECONDS = 0.5


class Permit(NamedTuple):
    """A thread for a tenant's lane, which was slow when it was taken or not."""

    tenant_id: UUID
    webhook_id: UUID | None
    slow: bool


class Bulkhead:
    """The permits of the deliveries running in this process; shared by its threads."""

    def __init__(self, threads: int) -> None:
        """Divide `threads`."""
        self._most = max(1, threads - KEPT_FOR_JOBS)
        self._most_slow = max(1, self._most * 2 // 3)
        self._lock = threading.Lock()
        self._held: Counter[Permit] = Counter()

    def acquire(self, tenant_id: UUID, webhook_id: UUID, *, slow: bool) -> Permit | None:
        """Take a permit for a lane; None when the tenant's share is used up."""
        permit = Permit(tenant_id, webhook_id, slow)
        with self._lock:
            if self._is_full(permit):
                return None
            self._held[permit] += 1
            return permit

    def should_yield(self, permit: Permit) -> bool:
        """Say whether a slow lane should queue behind its tenant's others when its turn ends.

        It should while another slow one would get no permit.
        """
        with self._lock:
            return permit.slow and self._is_full(permit._replace(webhook_id=None))

    def release(self, permit: Permit) -> None:
        """Release a permit; call it once."""
        with self._lock:
            self._held[permit] -= 1
            if not self._held[permit]:
                del self._held[permit]

    def _is_full(self, wanted: Permit) -> bool:
        free = self._most - self._held.total()
        if wanted.slow:
            slow = sum(count for permit, count in self._held.items() if permit.slow)
            free = min(free, self._most_slow - slow)
        held = sum(
            count
            for permit, count in self._held.items()
            if (permit.tenant_id, permit.slow) == (wanted.tenant_id, wanted.slow)
        )
        kept = wanted in self._held
        return free <= kept or held + kept > free - kept


class FullLanes:
    """Lanes whose slots are all held, some by this process: another turn would find none.

    So a ring there is dropped, and its lane stays debounced. A turn that holds a slot looks for
    rows anew before it leaves; it reopens the lane before that look. After half a second the lane
    is taken for open: turns of other processes may have left it, and a POST hang.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """No lane is full; `clock` returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._turns: Counter[LaneKey] = Counter()
        self._until: dict[LaneKey, float] = {}
        self._dropped: set[LaneKey] = set()

    def enter(self, lane: LaneKey) -> None:
        """Note that a turn of this process has a slot of a lane."""
        with self._lock:
            self._turns[lane] += 1

    def close(self, lane: LaneKey) -> None:
        """Note that a lane is full; it stays open if no turn of this process has a slot there."""
        with self._lock:
            if lane in self._turns:
                self._until[lane] = self._clock() + _FULL_SECONDS

    def drops(self, lane: LaneKey) -> bool:
        """Say whether a ring of a lane is to be dropped, and note it."""
        with self._lock:
            is_full = self._until.get(lane, 0.0) > self._clock()
            if is_full:
                self._dropped.add(lane)
            return is_full

    def reopen(self, lane: LaneKey) -> bool:
        """Take rings of a lane again; say whether one was dropped."""
        with self._lock:
            return self._reopen(lane)

    def leave(self, lane: LaneKey) -> bool:
        """Note that a turn has left, once for each `enter`; else as `reopen`."""
        with self._lock:
            self._turns[lane] -= 1
            if not self._turns[lane]:
                del self._turns[lane]
            return self._reopen(lane)

    def _reopen(self, lane: LaneKey) -> bool:
        self._until.pop(lane, None)
        dropped = lane in self._dropped
        self._dropped.discard(lane)
        return dropped
