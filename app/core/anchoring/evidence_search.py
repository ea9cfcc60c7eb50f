"""Finds the first checkpoint that proves something, for many leaves at once.

Rows give candidates, which count once they are verified. Each is verified once, for all leaves.
"""

from collections.abc import Callable, Iterable, Mapping

Find = Callable[[Mapping[int, int]], Mapping[int, int]]
"""Finds the first candidate's size in each range: beyond the key, up to and with the value."""

_MOST_REFUSED = 64


class FirstHolding:
    """The first size beyond an index whose candidate holds; good for one transaction."""

    def __init__(self, end: int, find: Find, holds: Callable[[int], bool]) -> None:
        """`end` is the largest size there is."""
        self._end = end
        self._find = find
        self._holds = holds
        self._found: dict[int, int | None] = {}

    def prepare(self, indexes: Iterable[int]) -> None:
        """Find the answers for these indexes, all below `end`, by one query for all of them."""
        new = set(indexes) - self._found.keys()
        if not new:
            return
        points = sorted(new | self._found.keys())
        uppers = dict(zip(points, [*points[1:], self._end], strict=True))
        candidates = self._find({index: uppers[index] for index in new})
        for index in sorted(new, reverse=True):
            first = self._first(candidates.get(index), uppers[index])
            # A checkpoint beyond the next index is beyond this one as well.
            self._found[index] = self._found.get(uppers[index]) if first is None else first

    def beyond(self, index: int) -> int | None:
        """Return the answer for an index that was prepared; None if nothing holds."""
        return self._found.get(index)

    def _first(self, size: int | None, upper: int) -> int | None:
        """Return the first from this candidate on that holds, up to `upper`.

        A table full of invalid rows must not have every reader check all of them: after so many the
        search gives up.
        """
        for _ in range(_MOST_REFUSED):
            if size is None or self._holds(size):
                return size
            size = self._find({size: upper}).get(size)
        return None
