"""The bulkhead: limits a worker process's delivery turns, by tenant and kind.

Two threads are reserved for jobs and ticks. Quick and slow lanes are two kinds; each leaves a
quarter of the threads to the other. A tenant with more permits of a kind than are free gets none
(dynamic threshold; Choudhury and Hahne, 1998).
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

KEPT_FOR_JOBS = 2
# Permits that a tenant may hold per free one; turns at quick lanes are short. Of the 46 permits of
# a kind with 64 threads, one tenant takes 24 (32 of the quick kind), and two share 32.
_HELD_FOR_ONE_FREE = {True: 2, False: 1}
# A slow lane that got no permit is taken for slow, without a query, for this long.
_KNOWN_SLOW_SECONDS = 10.0
_MOST_KNOWN = 10_000


@dataclass(eq=False)
class Permit:
    """The permit of a turn at a tenant's lane; `quick` when it began, `hangs` if slow since."""

    tenant_id: UUID
    webhook_id: UUID
    quick: bool
    hangs: bool = False


class Bulkhead:
    """The permits of the turns running in this process; shared by its threads."""

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Divide `threads`; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._known_slow: dict[tuple[UUID, UUID], float] = {}
        self._most = max(1, threads - KEPT_FOR_JOBS)
        self._most_of_a_kind = max(1, self._most - threads // 4)
        self._lock = threading.Lock()
        self._permits: set[Permit] = set()

    def acquire(self, tenant_id: UUID, webhook_id: UUID, *, quick: bool) -> Permit | None:
        """Take a permit for a turn at a lane; None when none is free for it.

        `quick` says that the lane's receiver is known to answer within a second.
        """
        with self._lock:
            if not self._has_room(tenant_id, webhook_id, quick=quick):
                return None
            permit = Permit(tenant_id, webhook_id, quick)
            self._permits.add(permit)
            return permit

    def turn_away(self, tenant_id: UUID, webhook_id: UUID) -> None:
        """Remember a slow lane that got no permit."""
        with self._lock:
            if len(self._known_slow) > _MOST_KNOWN:
                self._known_slow.clear()
            self._known_slow[tenant_id, webhook_id] = self._clock() + _KNOWN_SLOW_SECONDS

    def turns_away(self, tenant_id: UUID, webhook_id: UUID) -> bool:
        """Say whether a lane that was slow a moment ago would still get no permit."""
        with self._lock:
            until = self._known_slow.get((tenant_id, webhook_id), 0.0)
            return self._clock() < until and not self._has_room(tenant_id, webhook_id, quick=False)

    def note_hanging(self, permit: Permit) -> None:
        """Count a turn as slow from now on, even if that exceeds the limit."""
        with self._lock:
            permit.hangs = True

    def should_yield(self, permit: Permit) -> bool:
        """Say whether the lane should queue behind others when its turn ends.

        A slow lane should, while another slow lane of its tenant would get no permit.
        """
        with self._lock:
            slow = permit.hangs or not permit.quick
            return slow and not self._has_room(permit.tenant_id, None, quick=False)

    def release(self, permit: Permit) -> None:
        """Release a permit; call it once."""
        with self._lock:
            self._permits.remove(permit)

    def _has_room(self, tenant_id: UUID, webhook_id: UUID | None, *, quick: bool) -> bool:
        of_kind = sum((each.quick and not each.hangs) == quick for each in self._permits)
        free = min(self._most_of_a_kind - of_kind, self._most - len(self._permits))
        # A permit taken as quick that hangs counts as both, or a tenant could fill the process.
        held = [
            each
            for each in self._permits
            if each.tenant_id == tenant_id and (each.quick == quick or (each.hangs and not quick))
        ]
        # The last permit that a tenant may take is reserved for a lane that holds none.
        kept = any(each.webhook_id == webhook_id for each in held)
        left = free - kept
        return left > 0 and len(held) + kept <= _HELD_FOR_ONE_FREE[quick] * left
