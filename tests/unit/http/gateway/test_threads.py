"""Threads of requests: urgent paths, turns, and waits that hold none."""

import asyncio
import threading
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import pytest

from app.lib.gateway import gateway as gateway_module
from app.lib.gateway.gateway import READY, WAIT, WAITED, Wait
from app.lib.gateway.threads import Threads
from tests.unit.http.gateway.exchange import Environ, Exchange, gateway, serve


async def test_urgent_paths_are_answered_while_every_thread_is_taken() -> None:
    go_on = threading.Event()

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if made["PATH_INFO"] != "/healthz":
            go_on.wait(60)
        start("200 OK", [])
        return [b"ok"]

    one = gateway(application, 2, urgent={"/healthz": application})
    others = [asyncio.create_task(serve(one, Exchange())) for _ in range(5)]
    urgent = Exchange(path="/healthz")
    await serve(one, urgent)
    assert urgent.body == b"ok"
    assert not any(task.done() for task in others)
    go_on.set()
    await asyncio.gather(*others)


def test_a_thread_goes_on_after_the_end_of_a_loop_that_waited_for_it() -> None:
    began, go_on = threading.Event(), threading.Event()
    threads = Threads(2, 2, "test")

    def call() -> None:
        began.set()
        go_on.wait(60)

    async def leave() -> None:
        waiting = asyncio.create_task(threads.run("a caller", call))
        await asyncio.to_thread(began.wait, 60)
        waiting.cancel()

    async def come() -> list[bool]:
        # Both threads are needed: neither ends before the other has begun.
        both = threading.Barrier(2)
        loop = asyncio.get_running_loop()
        calls: list[asyncio.Future[bool]] = [loop.create_future() for _ in range(2)]
        for outcome in calls:
            threads._calls.put((lambda: both.wait(60) >= 0, outcome))
        return await asyncio.gather(*calls)

    asyncio.run(leave())
    go_on.set()
    assert asyncio.run(come()) == [True, True]


async def test_a_request_says_since_when_it_has_waited_for_a_thread() -> None:
    """What is measured from there on tells of starvation."""
    entered, leave = threading.Event(), threading.Event()
    since: list[float] = []

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        since.append(made[READY])
        entered.set()
        leave.wait(60)
        start("200 OK", [])
        return [b""]

    # One caller has one of two threads: its second request waits for the first.
    one = gateway(application, 2)
    tasks = [asyncio.create_task(serve(one, Exchange())) for _ in range(2)]
    await asyncio.to_thread(entered.wait, 60)
    released = perf_counter()
    leave.set()
    await asyncio.gather(*tasks)
    assert len(since) == 2
    assert max(since) < released


async def test_an_answer_that_is_waited_for_holds_no_thread() -> None:
    ready = threading.Event()
    waiting = threading.Semaphore(0)

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if made["PATH_INFO"] == "/wait" and WAITED not in made:
            waiting.release()
            made[WAIT].append(Wait(ready.is_set, 600))
        start("200 OK", [])
        return [b"ready" if ready.is_set() else b"other"]

    one = gateway(application)
    waiters = [Exchange(path="/wait") for _ in range(20)]
    tasks = [asyncio.create_task(serve(one, each)) for each in waiters]
    for _ in waiters:
        await asyncio.to_thread(waiting.acquire)
    other = Exchange(path="/other")
    await serve(one, other)
    ready.set()
    await asyncio.gather(*tasks)
    assert [each.body for each in waiters] == [b"ready"] * 20
    assert other.body == b"other"


async def test_a_wait_ends_when_its_time_is_up_or_its_check_fails() -> None:
    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if WAITED not in made:
            seconds = 600 if made["PATH_INFO"] == "/error" else 0.001
            made[WAIT].append(Wait(lambda: 1 // 0 > 0, seconds))
        start("200 OK", [])
        return [b"after all" if WAITED in made else b"dropped"]

    for path in ("/error", "/late"):
        exchange = Exchange(path=path)
        await serve(gateway(application), exchange)
        assert exchange.body == b"after all"


def late(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a probe that was not answered in time."""
    start("503 Service Unavailable", [])
    return [b"late"]


async def test_probes_are_answered_while_their_thread_stalls_and_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_module, "PROBE_SECONDS", 0.01)
    stalls = threading.Event()

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        if made["PATH_INFO"] == "/readyz":
            stalls.wait(60)
        start("200 OK", [])
        return [b"ok"]

    one = gateway(application, 2, urgent={"/readyz": late, "/healthz": late})
    probes = [Exchange(path="/readyz") for _ in range(10)]
    await asyncio.gather(*(serve(one, each) for each in probes))
    monkeypatch.setattr(gateway_module, "PROBE_SECONDS", 600)
    alive, ready = Exchange(path="/healthz"), Exchange(path="/readyz")
    await serve(one, alive)
    stalls.set()
    await serve(one, ready)
    assert [each.body for each in probes] == [b"late"] * 10
    assert alive.body == ready.body == b"ok"


async def test_a_flood_of_probes_of_one_address_delays_another_s_by_one() -> None:
    entered, leave = threading.Semaphore(0), threading.Semaphore(0)
    served: list[str] = []

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        entered.release()
        leave.acquire()
        served.append(made["REMOTE_ADDR"])
        start("200 OK", [])
        return [b"ok"]

    one = gateway(application, urgent={"/readyz": late})
    flood = [asyncio.create_task(serve(one, Exchange(path="/readyz"))) for _ in range(9)]
    await asyncio.to_thread(entered.acquire)
    other = Exchange(path="/readyz")
    other.scope["client"] = ("127.0.0.2", "9")
    balancer = asyncio.create_task(serve(one, other))
    await asyncio.sleep(0)
    for _ in range(10):
        leave.release()
    await asyncio.gather(*flood, balancer)
    assert served.index("127.0.0.2") <= 2


async def test_requests_whose_clients_leave_while_they_wait_never_reach_the_application() -> None:
    entered, leave = threading.Event(), threading.Event()
    calls: list[str] = []

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        calls.append(made["PATH_INFO"])
        entered.set()
        leave.wait(60)
        start("200 OK", [])
        return [b"ok"]

    one = gateway(application, urgent={"/readyz": late})
    first = asyncio.create_task(serve(one, Exchange(path="/first")))
    await asyncio.to_thread(entered.wait, 60)
    body = (b"content-length", b"1")
    gone = [Exchange(path="/gone"), Exchange("POST", "/gone", body).with_body(b"x")]
    for each in gone:
        each.arrived.append({"type": "http.disconnect"})
    await asyncio.gather(*(serve(one, each) for each in gone))
    assert not first.done()
    leave.set()
    await first
    await serve(one, Exchange(path="/next"))
    assert [each.sent for each in gone] == [[], []]
    assert calls == ["/first", "/next"]


async def test_a_wait_for_an_answer_ends_when_the_client_leaves() -> None:
    looked, over = threading.Event(), threading.Event()

    def look() -> bool:
        looked.set()
        return False

    def application(made: Environ, start: Callable[..., Any]) -> Iterable[bytes]:
        made[WAIT].append(Wait(look, 600, over.set))
        start("202 Accepted", [])
        return []

    exchange = Exchange()
    exchange.arrived.append({"type": "http.disconnect"})
    await serve(gateway(application), exchange)
    assert (exchange.sent, looked.is_set(), over.is_set()) == ([], False, True)
