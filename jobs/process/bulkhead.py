"""The bulkhead: each tenant's share of a worker process's threads.

Two threads are kept for jobs. A tenant takes no further permit while it holds more than are free
(dynamic threshold, Choudhury and Hahne 1998), and its last one only at a lane that has none. Slow
lanes use two thirds of the threads at most, and are counted by themselves.
"""

import threading
from collections import Counter
from typing import NamedTuple
from uuid import UUID

KEPT_FOR_JOBS = 2


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
