"""How many deliveries one worker process may have under way, so that everyone gets a turn.

Two threads are kept for jobs and ticks. Lanes whose receiver is not known to be quick share at most
half of all threads: however many endpoints hang, the others still find a thread.
"""

import threading

KEPT_FOR_JOBS = 2


class Room:
    """Counts the lanes under way in this process; shared by its threads."""

    def __init__(self, threads: int) -> None:
        self._most = max(1, threads - KEPT_FOR_JOBS)
        self._most_unproven = max(1, threads // 2)
        self._lock = threading.Lock()
        self._proven = 0
        self._unproven = 0

    def enter(self, *, proven: bool) -> "Place | None":
        """Take a place for one lane; None when there is no room for its kind."""
        with self._lock:
            if self._proven + self._unproven >= self._most:
                return None
            if not proven and self._unproven >= self._most_unproven:
                return None
            if proven:
                self._proven += 1
            else:
                self._unproven += 1
        return Place(self, proven=proven)

    def move(self, *, proven: int, unproven: int) -> None:
        """Change how many are under way of each kind."""
        with self._lock:
            self._proven += proven
            self._unproven += unproven


class Place:
    """One lane's place in the room, until it leaves."""

    def __init__(self, room: Room, *, proven: bool) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._proven = proven

    def turned_slow(self) -> None:
        """Count this lane among the unproven from now on, even if that is one too many."""
        with self._lock:
            if self._proven:
                self._proven = False
                self._room.move(proven=-1, unproven=1)

    def leave(self) -> None:
        """Give the place back; call it once."""
        with self._lock:
            self._room.move(proven=-int(self._proven), unproven=-int(not self._proven))
