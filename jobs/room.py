"""How many lanes one worker process may have under way, so that everyone gets a turn.

A POST that hangs holds a thread for 15 seconds and nothing else, so threads are many and rules say
who may take them. Of T threads in each of P processes:

- two are kept for jobs and ticks;
- proven lanes take at most half, since more at work at once only contend for Python's lock;
- all others together leave them a quarter: proven lanes never find that taken by strangers;
- lanes known to be slow enter only while slow ones hold less than a quarter.

A lane of which nobody knows whether it hangs is slow from the moment a POST of its has been out for
a second, and keeps its place as such, even if that is one too many. When its POST ends it is a slow
lane among others, and comes back into their quarter alone. So:

    however many lanes are known to be slow, one that nobody knows finds a place at once while fewer
    than P(T/2 - 2) others that nobody knew hang (60 by default);
    where more begin to hang at once, each P(T/2 - 2) of them make it wait for the length of one
    POST, and never again.

A slow lane whose turn ends while their quarter is taken goes behind those that wait (`wanted`).
"""

import threading
from collections import Counter

from app.core.delivery.lanes import Standing

KEPT_FOR_JOBS = 2


class Room:
    """Counts the lanes under way in this process; shared by its threads."""

    def __init__(self, threads: int) -> None:
        self._most = max(1, threads - KEPT_FOR_JOBS)
        self._most_proven = max(1, threads // 2)
        self._most_unproven = max(1, self._most - threads // 4)
        self._most_slow = max(1, threads // 4)
        self._lock = threading.Lock()
        self._held: Counter[Standing] = Counter()

    def enter(self, standing: Standing) -> "Place | None":
        """Take a place for one lane; None when there is no room for its kind."""
        with self._lock:
            if not self._has_room_for(standing):
                return None
            self._held[standing] += 1
        return Place(self, standing)

    def move(self, old: Standing, new: Standing) -> None:
        """Count one of the lanes under way as of another kind."""
        with self._lock:
            self._held[old] -= 1
            self._held[new] += 1

    def leave(self, standing: Standing) -> None:
        """Give one place of this kind back."""
        with self._lock:
            self._held[standing] -= 1

    def full_for(self, standing: Standing) -> bool:
        """Say whether one more lane of this kind would find no place."""
        with self._lock:
            return not self._has_room_for(standing)

    def _has_room_for(self, standing: Standing) -> bool:
        held = self._held
        if held.total() >= self._most:
            return False
        if standing is Standing.PROVEN:
            return held[Standing.PROVEN] < self._most_proven
        if held[Standing.UNKNOWN] + held[Standing.SLOW] >= self._most_unproven:
            return False
        return standing is Standing.UNKNOWN or held[Standing.SLOW] < self._most_slow


class Place:
    """One lane's place in the room, until it leaves."""

    def __init__(self, room: Room, standing: Standing) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._standing = standing

    def turned_slow(self) -> None:
        """Count this lane among the slow from now on, even if that is one too many."""
        with self._lock:
            self._room.move(self._standing, Standing.SLOW)
            self._standing = Standing.SLOW

    def wanted(self) -> bool:
        """Say whether this lane should go behind others when its turn ends.

        A slow one should while there is no room for another: the next turn may last as long.
        """
        with self._lock:
            return self._standing is Standing.SLOW and self._room.full_for(self._standing)

    def leave(self) -> None:
        """Give the place back; call it once."""
        with self._lock:
            self._room.leave(self._standing)
