"""Group commit: items that arrive while a run is under way go together with the next one.

As databases write the commits of many sessions with one flush (DeWitt et al., 1984). No timer:
an item that comes alone waits for no other.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

# A call of the database that stores things costs ten times what one thing more in it does: those of
# so many requests are worth a call of their own beside another.
CROWD = 4

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _Seat(Generic[_Item, _Result]):
    """An item and its outcome.

    A thread that submitted it waits to be `called`, and carries its `group` unless another does; a
    coroutine awaits the `future`.
    """

    __slots__ = ("called", "future", "group", "item", "outcome", "weight")

    def __init__(
        self, item: _Item, weight: int, future: "asyncio.Future[_Result] | None" = None
    ) -> None:
        self.item = item
        self.weight = weight
        self.future = future
        self.outcome: _Result | BaseException | None = None
        self.group: list[_Seat[_Item, _Result]] | None = None
        self.called = Lock()
        self.called.acquire()


class GroupCommit(Generic[_Item, _Result]):
    """Runs the items of many threads, and of one event loop, at most `ways` runs at once.

    A run is carried by the thread of its first item, which carries that run alone, or by a task of
    the event loop.
    """

    def __init__(
        self,
        run: Callable[[Sequence[_Item]], Sequence[_Result | BaseException]],
        ways: int = 2,
        most: int = 500,
        *,
        on_loop: Callable[[Sequence[_Item]], Awaitable[Sequence[_Result | BaseException]]]
        | None = None,
        weigh: Callable[[_Item], int] = lambda _: 1,
        crowd: int = 1,
        apart: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        """`run` returns one result for each item, in their order; an exception is raised.

        `on_loop` does the same for coroutines, by default in a thread of their event loop's.

        Items of a run weigh `most` together; a heavier one goes alone. Beside a run of less than an
        eighth of that, which is soon over, another begins only once a `crowd` waits. Where a run of
        several raises an error that is `apart`, nothing of it may be done: each item is run alone
        then, so that the fault of one is its own. Any other error is that of each item.
        """
        self._run = run
        self._on_loop = on_loop or (lambda items: asyncio.to_thread(run, items))
        self._tasks: set[asyncio.Task[None]] = set()
        self._most = most
        self._weigh = weigh
        self._crowd = crowd
        self._light = 0
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
        seat = _Seat[_Item, _Result](item, self._weigh(item))
        with self._lock:
            self._waiting.append(seat)
        self._begin_next()
        seat.called.acquire()
        if seat.group is not None:
            self._carry(seat.group)
        outcome, seat.outcome, seat.group = seat.outcome, None, None
        try:
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome  # type: ignore[return-value]  # the result, which may be None
        finally:
            # An error holds the frames it came through, which must not hold it: no cycle.
            del outcome

    async def join(self, item: _Item) -> _Result:
        """Have an item run by the event loop; return its own result or raise its own error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()
        with self._lock:
            self._waiting.append(_Seat[_Item, _Result](item, self._weigh(item), future))
        # What else has arrived is read first: it goes together.
        loop.call_soon(self._begin_next, loop)
        try:
            return await future
        finally:
            del future

    def _carry(self, group: "list[_Seat[_Item, _Result]]") -> None:
        """Run a group, call the carrier of the next one, then all of this one."""
        try:
            outcomes = self._outcomes([seat.item for seat in group])
        finally:
            self._end(group)
            self._begin_next()
        self._tell(group, outcomes)
        del group, outcomes

    def _start(self, group: "list[_Seat[_Item, _Result]]", loop: asyncio.AbstractEventLoop) -> None:
        """Carry a group by a task of the event loop, which this thread runs."""
        task = loop.create_task(self._carry_on_loop(group, loop))
        # The loop itself keeps no task.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_on_loop(
        self, group: "list[_Seat[_Item, _Result]]", loop: asyncio.AbstractEventLoop
    ) -> None:
        try:
            outcomes = await self._outcomes_on_loop([seat.item for seat in group])
        finally:
            self._end(group)
            self._begin_next(loop)
        self._tell(group, outcomes, loop)
        del group, outcomes

    def _tell(
        self,
        group: "list[_Seat[_Item, _Result]]",
        outcomes: Sequence[_Result | BaseException],
        here: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Give each its outcome; `here` is the event loop if this thread runs it."""
        awaited = []
        for seat, outcome in zip(group, outcomes, strict=True):
            if seat.future is not None:
                awaited.append((seat.future, outcome))
                continue
            seat.outcome = outcome
            if seat is not group[0]:
                seat.called.release()
        if awaited and here is not None:
            _settle(awaited)
        elif awaited:
            awaited[0][0].get_loop().call_soon_threadsafe(_settle, awaited)

    def _outcomes(self, items: Sequence[_Item]) -> Sequence[_Result | BaseException]:
        try:
            return _complete(self._run(items), items)
        except BaseException as error:  # noqa: BLE001  # each submitter raises it
            if self._go_apart(items, error):
                return [each for item in items for each in self._outcomes([item])]
            return _for_each(error, len(items))

    async def _outcomes_on_loop(self, items: Sequence[_Item]) -> Sequence[_Result | BaseException]:
        try:
            return _complete(await self._on_loop(items), items)
        except BaseException as error:  # noqa: BLE001  # each submitter raises it
            if self._go_apart(items, error):
                return [each for item in items for each in await self._outcomes_on_loop([item])]
            return _for_each(error, len(items))

    def _go_apart(self, items: Sequence[_Item], error: BaseException) -> bool:
        return len(items) > 1 and isinstance(error, Exception) and self._apart(error)

    def _begin_next(self, here: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin a run of those that wait, if it may be; the first of them carries."""
        group = self._next()
        if not group:
            return
        first = group[0]
        if first.future is None:
            first.group = group
            first.called.release()
        elif here is not None:
            self._start(group, here)
        else:
            loop = first.future.get_loop()
            loop.call_soon_threadsafe(self._start, group, loop)

    def _next(self) -> "list[_Seat[_Item, _Result]]":
        """Take what goes together of those that wait; nothing if they are to wait on."""
        group: list[_Seat[_Item, _Result]] = []
        weight = 0
        with self._lock:
            if not self._free or (self._light and len(self._waiting) < self._crowd):
                return group
            while self._waiting:
                weight += self._waiting[0].weight
                if group and weight > self._most:
                    break
                group.append(self._waiting.popleft())
            if group:
                self._free -= 1
                self._light += self._is_light(group)
        return group

    def _end(self, group: "list[_Seat[_Item, _Result]]") -> None:
        """Give back the place of a run that is over."""
        with self._lock:
            self._free += 1
            self._light -= self._is_light(group)

    def _is_light(self, group: "list[_Seat[_Item, _Result]]") -> bool:
        return sum(seat.weight for seat in group) < self._most // 8


def _complete(results: Sequence[_Result], items: Sequence[_Item]) -> Sequence[_Result]:
    if len(results) != len(items):
        raise RuntimeError(f"{len(items)} items were run, with {len(results)} results.")
    return results


def _settle(settled: "Iterable[tuple[asyncio.Future[Any], Any]]") -> None:
    for future, outcome in settled:
        if future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _for_each(error: BaseException, count: int) -> list[Any]:
    """Return an error for each of so many: raised, one would get the tracebacks of all."""
    return [error, *(_copy(error) for _ in range(count - 1))]


def _copy(error: BaseException) -> BaseException:
    """Return an error like this one, caused by it, without a call of its own constructor."""
    copied = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error
    return copied
