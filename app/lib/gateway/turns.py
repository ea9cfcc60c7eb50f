"""Turns at a scarce place, by caller: round robin, as in fair queuing (Nagle, RFC 970)."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """`places` for all, of which one caller takes `each` at most; for one event loop.

    Callers that wait are let in one after the other, so a thousand requests of one caller delay
    the next one of another by one.
    """

    def __init__(self, places: int, each: int) -> None:
        self._free = places
        self._each = each
        self._taken: Counter[object] = Counter()
        self._waiting: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, caller: object) -> AsyncIterator[None]:
        """Wait for a place, and hold it for the length of an `async with`."""
        await self._take(caller)
        try:
            yield
        finally:
            self._give_back(caller)

    async def _take(self, caller: object) -> None:
        if self._free and self._taken[caller] < self._each:
            self._enter(caller)
            return
        called = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(called)
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._give_back(caller)
            raise

    def _enter(self, caller: object) -> None:
        self._free -= 1
        self._taken[caller] += 1

    def _give_back(self, caller: object) -> None:
        self._free += 1
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]
        while self._free and (following := self._next()) is not None:
            self._let_in(following)

    def _next(self) -> object | None:
        """Return the caller that has waited longest for a turn and may have one."""
        return next((one for one in self._waiting if self._taken[one] < self._each), None)

    def _let_in(self, caller: object) -> None:
        line = self._waiting.pop(caller)
        called = line.popleft()
        if line:
            # Behind all others.
            self._waiting[caller] = line
        if not called.done():
            self._enter(caller)
            called.set_result(None)
