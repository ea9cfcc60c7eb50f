"""Faults in what the service stands on and sends to: nothing accepted is lost.

Each lasts some seconds, while findings are posted. After each the accounting balances and agrees
with the rows, every receiver has every accepted finding, nothing is left claimed or running, and
the audit chain is whole. `pytest -s` shows how many duplicates were sent.
"""

import time

import pytest

from tests.e2e.harness.misfortune import House, Misfortune, suffer
from tests.e2e.harness.ordeal import Neighbourhood, neighbourhood, undergo
from tests.support.faults import until

pytestmark = pytest.mark.stacks


def test_redis_emptied_and_connections_to_the_database_terminated(service: House) -> None:
    undergo(service, 12, service.redis_emptied(every=0.3), service.connections_terminated(every=1))


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


def test_receivers_that_reset_stall_and_drip(service: House) -> None:
    def ways(place: Neighbourhood) -> list[Misfortune]:
        one, two, three = place.neighbours
        return [
            Misfortune("a receiver resets", lasting=one.resetting),
            Misfortune("another stalls", lasting=two.stalling),
            Misfortune("another drips", lasting=three.dripping),
        ]

    undergo(service, 10, also=ways)
