"""A bulkhead: bounds running and queued large work in a process, with a share for each tenant."""

from collections import Counter
from threading import Condition

from app.errors import Busy

_WAIT_SECONDS = 10.0
# Queue places that are reserved for tenants with no request in the queue.
_KEPT = 2

_FULL = "Too many large records are being read or written; try again in a moment."


class LargeWork:
    """A bulkhead: `at_once` requests run and `waiting` are queued; safe for threads.

    One tenant never takes all places of either, if there are at least two.
    """

    def __init__(self, at_once: int, waiting: int) -> None:
        self._at_once = at_once
        self._waiting = waiting
        self._changed = Condition()
        self._at_work: Counter[object] = Counter()
        self._in_line: Counter[object] = Counter()

    def enter(self, whose: object, *, unqueued: bool = False) -> bool:
        """Take a place; return whether it was waited for.

        Raises `Busy` if the queue is full or after 10 s. What is `unqueued` waits beside the queue,
        whatever its length: work of moments, which turns at the threads bound already.
        """
        with self._changed:
            waited = not self._has_place(whose)
            if waited:
                self._wait(whose, unqueued)
            self._at_work[whose] += 1
        return waited

    def leave(self, whose: object) -> None:
        """Free the place."""
        with self._changed:
            _less(self._at_work, whose)
            self._changed.notify_all()

    def _wait(self, whose: object, unqueued: bool) -> None:
        if not unqueued and not self._may_wait(whose):
            raise Busy(_FULL)
        line: Counter[object] = Counter() if unqueued else self._in_line
        line[whose] += 1
        try:
            if not self._changed.wait_for(lambda: self._has_place(whose), _WAIT_SECONDS):
                raise Busy(_FULL)
        finally:
            _less(line, whose)

    def _has_place(self, whose: object) -> bool:
        left = self._at_once - self._at_work.total()
        return left > 0 and (self._at_work[whose] < max(self._at_once - 1, 1))

    def _may_wait(self, whose: object) -> bool:
        left = self._waiting - self._in_line.total()
        return left > (_KEPT if self._in_line[whose] else 0)


def _less(counts: "Counter[object]", of: object) -> None:
    counts[of] -= 1
    if not counts[of]:
        del counts[of]
