"""Turns at a scarce place, by caller: round robin, as in fair queuing (Nagle, RFC 970)."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

from app.lib.gateway.client import ClientLeft


def never() -> "asyncio.Future[Any]":
    """Return a future that is never done: for a wait that no client ends."""
    return asyncio.get_running_loop().create_future()


class Turns:
    """`places` for all, of which one caller takes `each` at most; for one event loop.

    Callers that wait are let in one after the other, so a thousand requests of one caller delay
    the next one of another by one. A caller is anything that has a hash; no value is special.
    """

    def __init__(self, places: int, each: int) -> None:
        self._free = places
        self._each = each
        self._taken: Counter[object] = Counter()
        self._waiting: OrderedDict[object, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many requests wait for a place."""
        return sum(map(len, self._waiting.values()))

    async def enter(
        self, caller: object, leaving: "Callable[[], asyncio.Future[Any]]" = never
    ) -> None:
        """Take a place when it is this caller's turn; `give_back` it afterwards.

        `leaving` is called if there is a wait, and ends it: raises `ClientLeft` once that future is
        done.
        """
        if self._free and self._taken[caller] < self._each:
            self._enter(caller)
            return
        called = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(called)
        try:
            await asyncio.wait((called, leaving()), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._decline(caller, called)
            raise
        if not called.done():
            self._decline(caller, called)
            raise ClientLeft

    def give_back(self, caller: object) -> None:
        """Give a place back: to the caller that waited longest for a turn and may have one."""
        self._free += 1
        self._taken[caller] -= 1
        if not self._taken[caller]:
            del self._taken[caller]
        while self._free and self._let_one_in():
            pass

    def _enter(self, caller: object) -> None:
        self._free -= 1
        self._taken[caller] += 1

    def _let_one_in(self) -> bool:
        may = (one for one in self._waiting if self._taken[one] < self._each)
        for caller in may:
            called = self._waiting[caller][0]
            # Behind all others, if more of it wait.
            self._waiting.move_to_end(caller)
            self._leave_line(caller, called)
            self._enter(caller)
            called.set_result(None)
            return True
        return False

    def _decline(self, caller: object, called: "asyncio.Future[None]") -> None:
        if called.done():
            self.give_back(caller)
        else:
            self._leave_line(caller, called)

    def _leave_line(self, caller: object, called: "asyncio.Future[None]") -> None:
        line = self._waiting[caller]
        line.remove(called)
        if not line:
            del self._waiting[caller]
