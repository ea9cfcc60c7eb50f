"""Threads that run blocking calls for an event loop; callers take turns at them."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from app.lib.gateway.requests import ClientLeft

_Result = TypeVar("_Result")
_Future = asyncio.Future


def never() -> "_Future[Any]":
    """Return a future that is never done: for a call that no client gives up."""
    return asyncio.get_running_loop().create_future()


class Threads:
    """`count` threads of one event loop, of which one caller has `each` at most.

    Callers that wait are served round robin, as in fair queuing (Nagle, RFC 970): a thousand calls
    of one delay the next one of another by one. A caller is anything that has a hash; no value is
    special. The threads end with the process.
    """

    def __init__(self, count: int, each: int, name: str) -> None:
        self._free = count
        self._each = each
        self._taken: Counter[object] = Counter()
        self._waiting: OrderedDict[object, deque[_Future[None]]] = OrderedDict()
        self._calls: SimpleQueue[tuple[Callable[[], Any], _Future[Any]]] = SimpleQueue()
        for number in range(count):
            Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    async def run(
        self,
        caller: object,
        call: Callable[[], _Result],
        leaving: "Callable[[], _Future[Any]]" = never,
    ) -> _Result:
        """Have a thread make a call; return or raise what it does. The thread is held until then.

        `leaving` is called if there is a wait for a thread, and ends it: raises `ClientLeft` once
        that future is done.
        """
        await self._enter(caller, leaving)
        outcome: _Future[_Result] = asyncio.get_running_loop().create_future()
        outcome.add_done_callback(lambda _: self._leave(caller))
        self._calls.put((call, outcome))
        try:
            return await asyncio.shield(outcome)
        finally:
            # An error that was raised holds this frame, which must not hold the error: no cycle.
            del outcome, call

    def _work(self) -> None:
        while True:
            call, outcome = self._calls.get()
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001  # the loop raises it
                error = raised
            # A loop that is closed has ended meanwhile: nobody waits for the outcome.
            with suppress(RuntimeError):
                outcome.get_loop().call_soon_threadsafe(_settle, outcome, result, error)
            del call, outcome, result, error

    async def _enter(self, caller: object, leaving: "Callable[[], _Future[Any]]") -> None:
        if self._free and self._taken[caller] < self._each:
            self._take(caller)
            return
        called: _Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(called)
        try:
            await asyncio.wait((called, leaving()), return_when=asyncio.FIRST_COMPLETED)
            if not called.done():
                raise ClientLeft
        except BaseException:
            if called.done():
                self._leave(caller)
            else:
                line = self._waiting[caller]
                line.remove(called)
                if not line:
                    del self._waiting[caller]
            raise

    def _take(self, caller: object) -> None:
        self._free -= 1
        self._taken[caller] += 1

    def _leave(self, caller: object) -> None:
        """Give a thread back: to the caller that waited longest for a turn and may have one."""
        self._free += 1
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]
        may = [one for one in self._waiting if self._taken[one] < self._each]
        for following in may[: self._free]:
            line = self._waiting.pop(following)
            called = line.popleft()
            if line:
                # Behind all others.
                self._waiting[following] = line
            self._take(following)
            called.set_result(None)


def _settle(outcome: "_Future[Any]", result: object, error: BaseException | None) -> None:
    if outcome.cancelled():
        return
    if error is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(error)
