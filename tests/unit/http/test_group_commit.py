"""Group commit: every submitter gets its own, no thread is kept, and no one waits alone."""

import asyncio
import gc
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Event, Lock, get_ident
from typing import Any

import pytest

from app.lib.group_commit import GroupCommit
from tests.support.faults import LONG_ENOUGH, until


class Gate:
    """A `run` that notes its groups and their threads, and waits where it is closed."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.carriers: list[int] = []
        self.open = Event()
        self.open.set()
        self._lock = Lock()

    def __call__(self, items: Sequence[int]) -> list[tuple[int, int]]:
        with self._lock:
            self.groups.append(list(items))
            self.carriers.append(get_ident())
        # Others come meanwhile.
        os.sched_yield()
        assert self.open.wait(LONG_ENOUGH)
        return [(item, get_ident()) for item in items]


@contextmanager
def threads(count: int) -> Iterator[Callable[..., "Future[Any]"]]:
    with ThreadPoolExecutor(count) as pool:
        yield pool.submit


@contextmanager
def busy(group: GroupCommit[int, Any], gate: Gate, ways: int) -> Iterator[None]:
    """Keep every way busy for the length of a `with`, each with an item of its own below 0."""
    gate.open.clear()
    with threads(ways) as submit:
        try:
            for way in range(ways):
                submit(group.submit, -1 - way)
            until(lambda: len(gate.groups) == ways)
            yield
        finally:
            gate.open.set()


def test_what_comes_meanwhile_goes_together_in_order_and_each_gets_its_own() -> None:
    gate = Gate()
    group = GroupCommit(gate, ways=2)
    with threads(8) as submit:
        with busy(group, gate, 2):
            futures = []
            for number in range(8):
                futures.append(submit(group.submit, number))
                until(lambda: group.waiting == len(futures))
        answers = [future.result(LONG_ENOUGH) for future in futures]
    assert [answer[0] for answer in answers] == list(range(8))
    assert gate.groups[2:] == [list(range(8))]
    # A way is given up once nobody waits: the next one comes alone again.
    assert group.submit(8) == (8, get_ident())


def test_at_most_so_many_runs_are_under_way_and_so_much_in_one() -> None:
    gate = Gate()
    group = GroupCommit(gate, ways=1, most=10, weigh=lambda item: max(item, 0))
    with threads(5) as submit:
        with busy(group, gate, 1):
            futures = []
            for weight in (4, 6, 3, 20, 1):
                futures.append(submit(group.submit, weight))
                until(lambda: group.waiting == len(futures))
            assert len(gate.groups) == 1
        assert [future.result(LONG_ENOUGH)[0] for future in futures] == [4, 6, 3, 20, 1]
    assert gate.groups[1:] == [[4, 6], [3], [20], [1]]


def test_no_thread_carries_more_than_the_run_of_its_own_item() -> None:
    gate = Gate()
    group = GroupCommit(gate, ways=2, most=3)
    each, count = 200, 12
    together = Barrier(count)

    def caller(mine: int) -> list[object]:
        together.wait(LONG_ENOUGH)
        answers: list[object] = []
        for turn in range(each):
            before = gate.carriers.count(get_ident())
            answers.append(group.submit(mine * each + turn)[0])
            assert gate.carriers.count(get_ident()) <= before + 1
        return answers

    with threads(count) as submit:
        futures = [submit(caller, mine) for mine in range(count)]
        for mine, future in enumerate(futures):
            assert future.result(LONG_ENOUGH) == list(range(mine * each, (mine + 1) * each))
    ran = sorted(item for items in gate.groups for item in items)
    assert ran == list(range(count * each))
    assert max(len(items) for items in gate.groups) <= 3


def test_a_result_that_is_an_error_is_raised_at_its_submitter_alone() -> None:
    gate = Gate()

    def run(items: Sequence[int]) -> list[int | BaseException]:
        gate(items)
        return [ValueError(item) if item % 2 else item for item in items]

    group = GroupCommit(run, ways=1)
    with threads(6) as submit:
        with busy(group, gate, 1):
            futures = [submit(group.submit, number) for number in range(6)]
            until(lambda: group.waiting == 6)
        for number, future in enumerate(futures):
            if number % 2:
                with pytest.raises(ValueError, match=str(number)):
                    future.result(LONG_ENOUGH)
            else:
                assert future.result(LONG_ENOUGH) == number


class Refused(Exception):
    """An error whose constructor takes other arguments than it keeps."""

    def __init__(self, *, item: int) -> None:
        super().__init__(f"Refused {item}.")
        self.item = item


@pytest.mark.parametrize("apart", [False, True])
def test_a_run_that_raises_is_the_error_of_each_or_each_is_run_alone(apart: bool) -> None:
    gate = Gate()

    def run(items: Sequence[int]) -> Sequence[object]:
        results = gate(items)
        if 2 in items:
            raise Refused(item=2)
        return results

    group = GroupCommit[int, object](run, ways=1, apart=lambda error: apart)
    with threads(4) as submit:
        with busy(group, gate, 1):
            futures = [submit(group.submit, number) for number in range(4)]
            until(lambda: group.waiting == 4)
        errors = [future.exception(LONG_ENOUGH) for future in futures]
    raised = [error for error in errors if error is not None]
    assert [type(error) for error in raised] == [Refused] * (1 if apart else 4)
    assert {(str(error), error.item) for error in raised} == {("Refused 2.", 2)}  # type: ignore[attr-defined]
    assert len({id(error) for error in raised}) == len(raised)
    assert isinstance(errors[2], Refused)
    assert len(gate.groups) == (6 if apart else 2)
    assert group.submit(5) == (5, get_ident())


def test_a_wrong_number_of_results_is_an_error_and_nobody_hangs() -> None:
    gate = Gate()

    def run(items: Sequence[int]) -> list[int]:
        gate(items)
        return [item for item in items if item != 1]

    group = GroupCommit(run, ways=1)
    with threads(3) as submit:
        with busy(group, gate, 1):
            futures = [submit(group.submit, number) for number in range(3)]
            until(lambda: group.waiting == 3)
        for future in futures:
            with pytest.raises(RuntimeError, match="3 items were run, with 2 results"):
                future.result(LONG_ENOUGH)


async def test_coroutines_and_threads_go_together_and_each_gets_its_own() -> None:
    gate = Gate()

    def run(items: Sequence[int]) -> list[tuple[int, int] | BaseException]:
        results = gate(items)
        return [
            ValueError(item) if item == 3 else got for item, got in zip(items, results, strict=True)
        ]

    group = GroupCommit[int, tuple[int, int]](run, ways=2)

    assert (await group.join(-10))[0] == -10
    gate.groups.clear()
    gate.open.clear()
    first = []
    for number in (-1, -2):
        first.append(asyncio.create_task(group.join(number)))
        await asyncio.to_thread(until, lambda: len(gate.groups) == len(first))
    tasks: list[asyncio.Future[object]] = []
    loop = asyncio.get_running_loop()
    for number in range(6):
        if number % 2:
            tasks.append(asyncio.create_task(group.join(number)))
        else:
            tasks.append(loop.run_in_executor(None, group.submit, number))
        await asyncio.to_thread(until, lambda: group.waiting == len(tasks))
    gate.open.set()
    assert [each[0] for each in await asyncio.gather(*first)] == [-1, -2]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert gate.groups[2:] == [list(range(6))]
    assert isinstance(found[3], ValueError)
    assert [each[0] for each in found if isinstance(each, tuple)] == [0, 1, 2, 4, 5]
    # A thread that submitted carries no later run: the carrier was of the group's first item.
    assert group.submit(9) == (9, get_ident())


async def test_who_awaits_no_longer_keeps_no_other_from_its_own() -> None:
    gate = Gate()
    group = GroupCommit[int, tuple[int, int]](gate, ways=1)

    gate.open.clear()
    tasks = [asyncio.create_task(group.join(0))]
    await asyncio.to_thread(until, lambda: len(gate.groups) == 1)
    tasks += [asyncio.create_task(group.join(number)) for number in (1, 2)]
    await asyncio.to_thread(until, lambda: group.waiting == 2)
    tasks[1].cancel()
    gate.open.set()
    assert isinstance((await asyncio.gather(*tasks, return_exceptions=True))[1], BaseException)
    assert (await tasks[2])[0] == 2


def test_a_loop_that_ends_meanwhile_gives_its_way_back() -> None:
    begun = asyncio.Event()

    async def hang(items: Sequence[int]) -> list[int]:
        begun.set()
        if items[0] == 1:
            await asyncio.Event().wait()
        return list(items)

    group = GroupCommit[int, int](list, ways=1, on_loop=hang)

    async def leave() -> None:
        joined = [asyncio.create_task(group.join(1))]
        await begun.wait()
        joined += [asyncio.create_task(group.join(2))]
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert asyncio.run(asyncio.wait_for(group.join(3), LONG_ENOUGH)) == 3
    assert group.submit(4) == 4


async def test_coroutines_that_arrive_in_one_turn_of_their_loop_go_together() -> None:
    groups: list[list[int]] = []

    async def note(items: Sequence[int]) -> list[int]:
        groups.append(list(items))
        await asyncio.sleep(0)
        return list(items)

    group = GroupCommit[int, int](list, ways=2, on_loop=note)
    assert await group.join(0) == 0
    assert await asyncio.gather(*(group.join(number) for number in range(1, 5))) == [1, 2, 3, 4]
    assert groups == [[0], [1, 2, 3, 4]]


def test_an_error_is_freed_with_its_submitter() -> None:
    def run(items: Sequence[int]) -> list[int]:
        raise Refused(item=items[0])

    group = GroupCommit(run)
    seen: list[weakref.ref[Refused]] = []
    gc.disable()
    try:
        try:
            group.submit(1)
        except Refused as error:
            seen.append(weakref.ref(error))
        assert [each() for each in seen] == [None]
    finally:
        gc.enable()
