"""Shares of something that is scarce in a process, such as memory or turns: a bulkhead."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class NoShare(Exception):
    """Nothing is left, or nothing of this owner's share."""


class Shares:
    """So much of something in all, and so much at most for one owner; safe for threads.

    An owner that holds nothing is given what it asks for as long as anything is left, so that a
    single large thing never waits for ever.
    """

    def __init__(self, total: int, each: int) -> None:
        self._total = total
        self._each = each
        self._held: Counter[object] = Counter()
        self._lock = Lock()

    @contextmanager
    def held(self, owner: object, size: int) -> Iterator[None]:
        """Hold `size` for an owner; raises `NoShare`."""
        self.take(owner, size)
        try:
            yield
        finally:
            self.give_back(owner, size)

    def take(self, owner: object, size: int) -> None:
        """Take `size` for an owner until it is given back; raises `NoShare`."""
        with self._lock:
            mine, all_held = self._held[owner], self._held.total()
            if all_held and all_held + size > self._total:
                raise NoShare
            if mine and mine + size > self._each:
                raise NoShare
            self._held[owner] += size

    def give_back(self, owner: object, size: int) -> None:
        """Give back what was taken."""
        with self._lock:
            self._held[owner] -= size
            if not self._held[owner]:
                del self._held[owner]
