"""The bulkhead: limits a worker process's delivery turns, by tenant and kind of lane.

Two threads are reserved for jobs. Each kind leaves a sixth of all to each other, so what hangs
never holds the last places of untried lanes. A tenant with more permits of a kind than are free
gets none (dynamic threshold).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from app.core.delivery.lanes.lanes import Kind

KEPT_FOR_JOBS = 2
# The share of the threads that each kind finds, however many of the others wait.
SHARE_OF_A_KIND = 6
# Permits that a tenant may hold per free one (Choudhury and Hahne, 1998). Turns at quick lanes are
# short, and an untried lane holds one permit, once. Of 62 permits with 64 threads a kind finds 42
# alone, and one tenant 22 of them at slow lanes, 34 at untried ones.
_HELD_FOR_ONE_FREE = {Kind.QUICK: 2, Kind.UNTRIED: 4, Kind.SLOW: 1}
# A slow lane that got no permit is taken for slow, without a query, for this long.
_KNOWN_SLOW_SECONDS = 10.0
_MOST_KNOWN = 10_000


@dataclass(eq=False)
class Permit:
    """The permit of a turn at a tenant's lane, of the kind that it `began` as.

    `hangs` says that a POST of it has been out for over a second.
    """

    tenant_id: UUID
    webhook_id: UUID
    began: Kind
    hangs: bool = False

    @property
    def kind(self) -> Kind:
        """The kind whose place it holds: that of a slow lane, where a quick one hangs.

        An untried one that hangs stays untried, or all that begin at once would take the places of
        slow lanes that answer.
        """
        return Kind.SLOW if self.hangs and self.began is Kind.QUICK else self.began


class Bulkhead:
    """The permits of the turns running in this process; shared by its threads."""

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Divide `threads`; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._known_slow: dict[tuple[UUID, UUID], float] = {}
        self._most = max(1, threads - KEPT_FOR_JOBS)
        self._share = threads // SHARE_OF_A_KIND
        self._lock = threading.Lock()
        self._permits: set[Permit] = set()

    def acquire(self, tenant_id: UUID, webhook_id: UUID, kind: Kind) -> Permit | None:
        """Take a permit for a turn at a lane; None when none is free for it."""
        with self._lock:
            if not self._has_room(tenant_id, webhook_id, kind):
                return None
            permit = Permit(tenant_id, webhook_id, kind)
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
            return self._clock() < until and not self._has_room(tenant_id, webhook_id, Kind.SLOW)

    def note_hanging(self, permit: Permit) -> None:
        """Count a turn as slow from now on, even if that exceeds the limit."""
        with self._lock:
            permit.hangs = True

    def should_yield(self, permit: Permit) -> bool:
        """Say whether the lane should queue behind others when its turn ends.

        A slow lane should, while another slow lane of its tenant would get no permit.
        """
        with self._lock:
            slow = permit.hangs or permit.began is Kind.SLOW
            return slow and not self._has_room(permit.tenant_id, None, Kind.SLOW)

    def release(self, permit: Permit) -> None:
        """Release a permit; call it once."""
        with self._lock:
            self._permits.remove(permit)

    def _has_room(self, tenant_id: UUID, webhook_id: UUID | None, kind: Kind) -> bool:
        taken = Counter(each.kind for each in self._permits)
        for_others = sum(max(0, self._share - taken[each]) for each in Kind if each is not kind)
        free = self._most - len(self._permits) - for_others
        # A permit taken as quick that hangs counts as both, or a tenant could fill the process.
        held = [
            each
            for each in self._permits
            if each.tenant_id == tenant_id and kind in (each.began, each.kind)
        ]
        # The last permit that a tenant may take is reserved for a lane that holds none.
        kept = any(each.webhook_id == webhook_id for each in held)
        left = free - kept
        return left > 0 and len(held) + kept <= _HELD_FOR_ONE_FREE[kind] * left
