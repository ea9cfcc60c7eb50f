"""Faults, each for some seconds, while findings are posted: nothing accepted is lost.

After each the books close within a minute: the service's accounting balances and agrees with the
rows, every receiver has every number and every accepted finding, nothing is left held or running,
and the audit chain is whole. What is paid is duplicates: `pytest -s` shows how many.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.e2e.misfortune import House, Misfortune, house, suffer
from tests.e2e.ordeal import SETTINGS, Neighbourhood, neighbourhood, undergo
from tests.faults import until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Run one service for all faults; each test has a tenant of its own."""
    with house(tmp_path_factory.mktemp("house"), **SETTINGS) as running:
        yield running


def test_workers_killed_every_second(service: House) -> None:
    undergo(service, 12, service.killed("worker", every=1))


def test_a_worker_killed_with_the_only_delivery_in_its_hands(service: House) -> None:
    with neighbourhood(service) as place:
        neighbour = place.neighbours[0]
        with neighbour.stalling():
            (finding,) = place.caller.findings(place.session_id, 1)
            until(lambda: neighbour.arrived)
            for pid in service.processes("worker"):
                os.kill(pid, signal.SIGKILL)
        print(f"\nthe only delivery: {place.close_books([finding['id']])}")


def test_redis_emptied_three_times_a_second(service: House) -> None:
    undergo(service, 8, service.redis_emptied(every=0.3))


def test_redis_frozen(service: House) -> None:
    with neighbourhood(service) as place:
        with place.traffic() as traffic:
            until(lambda: len(traffic.accepted) > 20)
            frozen_at = time.monotonic()
            suffer(6, service.redis_frozen())
            slowest = traffic.slowest_since(frozen_at)
            during = len(traffic.accepted)
        print(f"\nRedis frozen: slowest answer {slowest:.2f} s")
        closed = place.close_books(traffic.accepted)
        print(f"Redis frozen: {closed}")
    assert during > 20
    assert slowest < 1


def test_redis_away_for_ten_seconds_and_back_with_nothing(service: House) -> None:
    undergo(service, 10, service.redis_away())


def test_connections_to_the_database_terminated_every_second(service: House) -> None:
    undergo(service, 12, service.connections_terminated(every=1))


def test_postgres_restarted(service: House) -> None:
    undergo(service, 8, service.postgres_restarted(every=5))


def test_the_scheduler_killed_again_and_again(service: House) -> None:
    undergo(service, 8, service.killed("scheduler", every=2))


def test_the_web_killed_in_the_middle_of_requests(service: House) -> None:
    undergo(service, 10, service.killed("web", every=1))


def test_receivers_that_reset_stall_and_drip(service: House) -> None:
    def ways(place: Neighbourhood) -> list[Misfortune]:
        one, two, three = place.neighbours
        return [
            Misfortune("a receiver resets", lasting=one.resetting),
            Misfortune("another stalls", lasting=two.stalling),
            Misfortune("another drips", lasting=three.dripping),
        ]

    undergo(service, 10, also=ways)


def test_a_worker_frozen_in_the_middle_of_its_work_holds_nobody_up(service: House) -> None:
    """As a host that is cut off: its connections stand, and what they have locked stays locked."""
    with neighbourhood(service) as place, place.traffic() as traffic:
        until(lambda: len(traffic.accepted) > 100, 30)
        with service.worker_frozen().lasting():
            until(lambda: len(traffic.accepted) > 300, 60)
            traffic.end()
            closed = place.close_books(traffic.accepted)
    print(f"\na worker frozen: {closed}")
