"""Threads that run blocking calls for an event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_Ended = tuple["asyncio.Future[Any]", Any, BaseException | None]


class Threads:
    """A fixed number of threads of one event loop, which end with the process.

    Results return in batches: one wake-up of the loop brings all that ended meanwhile.
    """

    def __init__(self, count: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[..., Any], Any, asyncio.Future[Any]]]
        self._calls = SimpleQueue()
        self._ended: deque[_Ended] = deque()
        self._woken = False
        for number in range(count):
            Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def run(self, call: Callable[[Any], _Result], argument: object) -> "asyncio.Future[_Result]":
        """Have a thread make a call; the future has what it returns or raises."""
        future: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        self._calls.put((call, argument, future))
        return future

    def _work(self) -> None:
        while True:
            call, argument, future = self._calls.get()
            result, error = None, None
            try:
                result = call(argument)
            except BaseException as raised:  # noqa: BLE001  # the loop raises it
                error = raised
            self._ended.append((future, result, error))
            # Cleared by the loop before it looks, so nothing that is appended can be missed.
            if not self._woken:
                self._woken = True
                future.get_loop().call_soon_threadsafe(self._deliver)
            del call, argument, future, result, error

    def _deliver(self) -> None:
        self._woken = False
        while self._ended:
            future, result, error = self._ended.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
