"""Shares of something that is scarce in a process, such as memory or turns: a bulkhead."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


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
    def held(self, owner: object, size: int) -> Iterator[None]:
        """Hold `size` for an owner; raises `NoShare`."""
        self.take(owner, size)
        try:
            yield
        finally:
            self.give_back(owner, size)

    def take(self, owner: object, size: int, group: object = None) -> None:
        """Take `size` for an owner until it is given back; raises `NoShare`.

        Without `group` an owner is a group of its own.
        """
        group = owner if group is None else group
        with self._lock:
            mine, ours, all_held = (
                self._held[owner],
                self._of_groups[group],
                self._of_groups.total(),
            )
            left = self._total - all_held - size
            if all_held and left < 0:
                raise NoShare
            if ours and ours + size > left:
                raise NoShare
            if mine and mine + size > self._each:
                raise NoShare
            self._held[owner] += size
            self._of_groups[group] += size

    def give_back(self, owner: object, size: int, group: object = None) -> None:
        """Give back what was taken."""
        with self._lock:
            _less(self._held, owner, size)
            _less(self._of_groups, owner if group is None else group, size)


def _less(counts: "Counter[object]", of: object, size: int) -> None:
    counts[of] -= size
    if not counts[of]:
        del counts[of]
