"""Bulkheads of a process: shares of something scarce, such as memory, and places to work in."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Lock

_WAIT_SECONDS = 10.0


class NoShare(Exception):
    """Nothing is left, or nothing of this owner's share."""


class Shares:
    """So much of something in all, and so much at most for one owner; safe for threads.

    Owners of one group, such as a tenant's keys and links, take no more together than they leave
    free (dynamic thresholds, Choudhury and Hahne 1998): so another group finds something. A group
    or owner that holds nothing is bound by the total alone, and by nothing where nothing is held:
    a single large thing never waits for ever.
    """

    def __init__(self, total: int, each: int) -> None:
        self._total = total
        self._each = each
        self._held: Counter[object] = Counter()
        self._of_groups: Counter[object] = Counter()
        self._lock = Lock()

    @contextmanager
    def held(self, owner: object, size: int, group: object = None) -> Iterator[None]:
        """Hold `size` for an owner; raises `NoShare`. Without `group` it is a group of its own."""
        group = owner if group is None else group
        with self._lock:
            mine, ours, total = self._held[owner], self._of_groups[group], self._of_groups.total()
            left = self._total - total - size
            if (
                (total and left < 0)
                or (ours and ours + size > left)
                or (mine and mine + size > self._each)
            ):
                raise NoShare
            self._held[owner] += size
            self._of_groups[group] += size
        try:
            yield
        finally:
            with self._lock:
                take(self._held, owner, size)
                take(self._of_groups, group, size)


class Places:
    """`at_once` run and `waiting` are queued; safe for threads.

    One tenant never takes all places of either, if there are at least two.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._at_once = at_once
        self._waiting = waiting
        self._changed = Condition()
        self.at_work: Counter[object] = Counter()
        self.in_line: Counter[object] = Counter()

    @contextmanager
    def held(self, whose: object, *, unqueued: bool = False) -> Iterator[bool]:
        """Hold a place; yields whether it was waited for.

        Raises `NoShare` if the queue is full or after 10 s. What is `unqueued` waits beside the
        queue, whatever its length: work of moments, which turns at the threads bound already.
        """
        with self._changed:
            waited = not self._has_place(whose)
            if waited:
                line = Counter[object]() if unqueued else self.in_line
                # Two of the queue's places are for tenants with nothing in it.
                if not unqueued and self._waiting - line.total() <= (2 if line[whose] else 0):
                    raise NoShare
                line[whose] += 1
                try:
                    if not self._changed.wait_for(lambda: self._has_place(whose), _WAIT_SECONDS):
                        raise NoShare
                finally:
                    take(line, whose, 1)
            self.at_work[whose] += 1
        try:
            yield waited
        finally:
            with self._changed:
                take(self.at_work, whose, 1)
                self._changed.notify_all()

    def _has_place(self, whose: object) -> bool:
        free = self._at_once - self.at_work.total()
        return free > 0 and self.at_work[whose] < max(self._at_once - 1, 1)


def take(counts: "Counter[object]", of: object, size: int = 1) -> None:
    """Count so many less of something, and keep no zeros."""
    counts[of] -= size
    if not counts[of]:
        del counts[of]
