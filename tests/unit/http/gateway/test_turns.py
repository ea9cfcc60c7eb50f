"""Turns at the threads, round robin: no request waits for another caller's backlog."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.lib.gateway.requests import ClientLeft
from app.lib.gateway.threads import Threads, never


@asynccontextmanager
async def turn(turns: Threads, caller: object) -> AsyncIterator[None]:
    """Hold a place for the length of an `async with`."""
    await turns._enter(caller, never)
    try:
        yield
    finally:
        turns._leave(caller)


class Scene:
    """Callers at some places; each stays until it is told to leave."""

    def __init__(self, places: int, each: int) -> None:
        self.turns = Threads(places, each, "test")
        self.inside: list[object] = []
        self._leave: list[asyncio.Event] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def comes(self, caller: object, times: int = 1) -> None:
        """Let a caller come; return once all that can be let in are in."""
        for _ in range(times):
            leave = asyncio.Event()
            self._tasks.append(asyncio.create_task(self._stay(caller, leave)))
        await asyncio.sleep(0)

    async def first_leaves(self) -> None:
        """Have the caller leave that has been in for longest."""
        self._leave.pop(0).set()
        for _ in range(5):
            await asyncio.sleep(0)

    async def _stay(self, caller: object, leave: asyncio.Event) -> None:
        async with turn(self.turns, caller):
            self.inside.append(caller)
            self._leave.append(leave)
            await leave.wait()


async def test_one_request_is_next_behind_another_caller_s_backlog() -> None:
    scene = Scene(places=2, each=2)
    await scene.comes("loud", 100)
    await scene.comes("quiet")
    assert scene.inside == ["loud", "loud"]
    await scene.first_leaves()
    await scene.first_leaves()
    assert scene.inside == ["loud", "loud", "loud", "quiet"]


async def test_one_caller_leaves_places_free_for_others() -> None:
    scene = Scene(places=4, each=2)
    await scene.comes("loud", 100)
    assert scene.inside == ["loud"] * 2
    await scene.comes("quiet")
    await scene.comes("another")
    assert scene.inside == ["loud"] * 2 + ["quiet", "another"]
    await scene.comes("late")
    await scene.first_leaves()
    assert scene.inside[4:] == ["loud"]
    await scene.first_leaves()
    assert scene.inside[4:] == ["loud", "late"]


async def test_a_cancelled_wait_takes_no_place() -> None:
    scene = Scene(places=1, each=1)
    await scene.comes("first")
    waiting = asyncio.create_task(scene._stay("gone", asyncio.Event()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await scene.comes("next")
    await scene.first_leaves()
    assert scene.inside == ["first", "next"]
    await scene.first_leaves()
    async with turn(scene.turns, "another"):
        pass


async def test_a_caller_cancelled_as_it_is_let_in_gives_its_place_back() -> None:
    turns = Threads(1, 1, "test")
    async with turn(turns, "first"):
        waiting = asyncio.create_task(turns._enter("gone", never))
        await asyncio.sleep(0)
    # It has been called, and is cancelled before it hears of it.
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    async with turn(turns, "next"):
        pass


@pytest.mark.parametrize("caller", [None, False, 0, "", ()])
async def test_no_value_of_a_caller_is_special(caller: object) -> None:
    scene = Scene(places=1, each=1)
    await scene.comes("first")
    await scene.comes(caller, 2)
    await scene.first_leaves()
    await scene.first_leaves()
    assert scene.inside == ["first", caller, caller]


async def test_a_request_whose_client_leaves_is_no_longer_in_line() -> None:
    turns = Threads(1, 1, "test")
    left = asyncio.get_running_loop().create_future()
    await turns._enter("first", never)
    gone = asyncio.create_task(turns._enter("loud", lambda: left))
    stays = asyncio.create_task(turns._enter("loud", never))
    await asyncio.sleep(0)
    left.set_result(None)
    with pytest.raises(ClientLeft):
        await gone
    turns._leave("first")
    await stays
    assert not turns._waiting
