"""Group commit: items that arrive while a run is under way go together with the next one.

As databases write the commits of many sessions with one flush (DeWitt et al., 1984). No timer and
no thread of its own: whoever comes alone waits for nobody.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _Seat(Generic[_Item, _Result]):
    """An item, its outcome, and the group that its own thread carries; None if another does."""

    __slots__ = ("called", "group", "item", "outcome")

    def __init__(self, item: _Item) -> None:
        self.item = item
        self.outcome: _Result | BaseException | None = None
        self.group: list[_Seat[_Item, _Result]] | None = None
        self.called = Lock()
        self.called.acquire()


class GroupCommit(Generic[_Item, _Result]):
    """Runs the items of many threads together, at most `ways` runs at once.

    Each run is carried by the thread of one of its items, which carries that run alone.
    """

    def __init__(
        self,
        run: Callable[[Sequence[_Item]], Sequence[_Result | BaseException]],
        ways: int = 2,
        most: int = 500,
        *,
        weigh: Callable[[_Item], int] = lambda _: 1,
        apart: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        """`run` returns one result for each item, in their order; an exception is raised.

        Items of a run weigh `most` together; a heavier one goes alone. Where a run of several
        raises an error that is `apart`, nothing of it may be done: each item is run alone then, so
        that the fault of one is its own. Any other error is that of each item.
        """
        self._run = run
        self._most = most
        self._weigh = weigh
        self._apart = apart
        self._lock = Lock()
        self._free = ways
        self._waiting: deque[_Seat[_Item, _Result]] = deque()

    @property
    def waiting(self) -> int:
        """How many items wait for the next run."""
        return len(self._waiting)

    def submit(self, item: _Item) -> _Result:
        """Have an item run; return its own result or raise its own error."""
        seat = _Seat[_Item, _Result](item)
        with self._lock:
            if self._free:
                self._free -= 1
                seat.group = [seat]
            else:
                self._waiting.append(seat)
        if seat.group is None:
            seat.called.acquire()
        if seat.group is not None:
            self._carry(seat.group)
        outcome, seat.outcome, seat.group = seat.outcome, None, None
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome  # type: ignore[return-value]  # the result, which may be None
        finally:
            del outcome

    def _carry(self, group: "list[_Seat[_Item, _Result]]") -> None:
        """Run a group, call the carrier of the next one, then all of this one."""
        try:
            outcomes = self._outcomes([seat.item for seat in group])
        finally:
            self._call_next()
        for seat, outcome in zip(group, outcomes, strict=True):
            seat.outcome = outcome
            if seat is not group[0]:
                seat.called.release()
        # An error holds the frames it came through, which must not hold it: no cycle.
        del outcomes, outcome

    def _outcomes(self, items: Sequence[_Item]) -> Sequence[_Result | BaseException]:
        try:
            results = self._run(items)
            if len(results) != len(items):
                raise RuntimeError(f"{len(items)} items were run, with {len(results)} results.")
        except BaseException as error:  # noqa: BLE001  # each submitter raises it
            if len(items) > 1 and isinstance(error, Exception) and self._apart(error):
                return [each for item in items for each in self._outcomes([item])]
            # Threads that raise one instance would write into each other's traceback.
            return [error, *(_copy(error) for _ in items[1:])]
        return results

    def _call_next(self) -> None:
        """Give this run's place to the items that wait; the first of them carries."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            first = self._waiting.popleft()
            group, weight = [first], self._weigh(first.item)
            while self._waiting:
                weight += self._weigh(self._waiting[0].item)
                if weight > self._most:
                    break
                group.append(self._waiting.popleft())
            first.group = group
        first.called.release()


def _copy(error: BaseException) -> BaseException:
    """Return an error like this one, caused by it, without a call of its own constructor."""
    copied = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error
    return copied
