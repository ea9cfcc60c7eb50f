"""Faults in processes, stores and receivers: nothing accepted is lost.

Each lasts some seconds, while findings are posted. After each the accounting balances and agrees
with the rows, every receiver has every accepted finding, nothing is left claimed or running, and
the audit chain is whole. `pytest -s` shows how many duplicates were sent.
"""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.e2e.harness.misfortune import House, Misfortune, suffer
from tests.e2e.harness.ordeal import Neighbourhood, neighbourhood, undergo
from tests.e2e.harness.senders import Sender, hold
from tests.e2e.harness.stack import Caller
from tests.support.faults import LONG_ENOUGH, until

pytestmark = pytest.mark.stacks


@pytest.mark.toolbox
def test_workers_web_and_scheduler_killed_again_and_again(service: House) -> None:
    """The web is killed in the middle of requests."""
    lines = {"worker": 1.0, "web": 1.3, "scheduler": 2.0}
    undergo(service, 15, *(service.killed(line, every) for line, every in lines.items()))


def test_a_worker_killed_with_the_only_delivery_in_its_hands(service: House) -> None:
    with neighbourhood(service) as place:
        neighbour = place.neighbours[0]
        with neighbour.stalling():
            (finding,) = place.caller.findings(place.session_id, 1)
            until(lambda: neighbour.arrived)
            service.kill_all("worker")
        print(f"\nthe only delivery: {place.close_books([finding['id']])}")


@pytest.mark.toolbox
def test_a_worker_frozen_in_the_middle_of_its_work_delays_no_other(service: House) -> None:
    """As a host that is cut off: its connections stand, and what they have locked stays locked."""
    with neighbourhood(service) as place, place.traffic() as traffic:
        until(lambda: len(traffic.accepted) > 100)
        with service.worker_frozen().lasting():
            until(lambda: len(traffic.accepted) > 300)
            traffic.end()
            closed = place.close_books(traffic.accepted)
    print(f"\na worker frozen: {closed}")


@pytest.mark.toolbox
def test_redis_emptied_and_connections_to_the_database_terminated(service: House) -> None:
    undergo(service, 12, service.redis_emptied(every=0.3), service.connections_terminated(every=1))


@pytest.mark.toolbox
def test_redis_frozen(service: House) -> None:
    with neighbourhood(service) as place:
        with place.traffic() as traffic:
            until(lambda: len(traffic.accepted) > 20)
            frozen_at, before = time.monotonic(), len(traffic.accepted)
            suffer(6, service.redis_frozen())
            slowest = traffic.slowest_since(frozen_at)
            during = len(traffic.accepted) - before
        print(f"\nRedis frozen: slowest answer {slowest:.2f} s")
        closed = place.close_books(traffic.accepted)
        print(f"Redis frozen: {closed}")
    assert during > 0
    # Tenths of a second; who waited for Redis would wait until it is there again.
    assert slowest < 5


def test_redis_away_and_back_with_nothing_while_postgres_restarts(service: House) -> None:
    undergo(service, 10, service.redis_away(), service.postgres_restarted(every=5))


@pytest.mark.toolbox
def test_receivers_that_reset_stall_and_drip(service: House) -> None:
    def ways(place: Neighbourhood) -> list[Misfortune]:
        one, two, three = place.neighbours
        return [
            Misfortune("a receiver resets", lasting=one.resetting),
            Misfortune("another stalls", lasting=two.stalling),
            Misfortune("another drips", lasting=three.dripping),
        ]

    undergo(service, 10, also=ways)


@pytest.mark.toolbox
@pytest.mark.parametrize("what", ["findings", "records"])
def test_each_201_of_a_group_is_stored_once_and_is_its_own(service: House, what: str) -> None:
    callers = [service.stack.fresh_tenant() for _ in range(2)]
    sessions = [caller.session() for caller in callers]
    doomed = callers[0].post("/v1/keys", {"name": "doomed", "role": "write"})
    senders = [
        Sender(what, f"{number}-{place}-{repeats}", caller, session_id, repeats=repeats)
        for number, (caller, session_id) in enumerate(zip(callers, sessions, strict=True))
        for place in range(6)
        for repeats in (False, True)
    ]
    refused = Sender(
        what, "refused", Caller(callers[0].base_url, doomed["key"]), sessions[0], repeats=False
    )
    over = threading.Event()

    def counted() -> tuple[int, int]:
        return sum(len(sender.accepted) for sender in senders), refused.statuses[401]

    def has_come(least: tuple[int, int]) -> bool:
        return all(count >= wanted for count, wanted in zip(counted(), least, strict=True))

    with ThreadPoolExecutor(len(senders) + 1) as pool:
        running = [pool.submit(sender.post_until, over) for sender in [*senders, refused]]
        try:
            until(lambda: len(refused.accepted) > 20)
            callers[0].delete(f"/v1/keys/{doomed['id']}")
            until(lambda: refused.statuses[401] > 0)
            known = len(refused.accepted)
            faults = [service.killed("web", 1), service.postgres_killed(every=1)]
            for number in range(20):
                least = counted()[0] + 30, counted()[1] + 1
                until(partial(has_come, least))
                faults[number % 2].act()
        finally:
            over.set()
        for each in running:
            each.result(LONG_ENOUGH)
    assert refused.statuses[401] > 20
    assert len(refused.accepted) == known
    hold(service, [*senders, refused])
    statuses = sum((sender.statuses for sender in senders), Counter[int]())
    print(f"\ngroups: {dict(statuses)}, refused {refused.statuses[401]}")
    assert statuses[503] > 0
    assert all(len(sender.accepted) > 10 for sender in senders)
