"""Faults in the service's processes: nothing accepted is lost.

Each lasts some seconds, while findings are posted. After each the accounting balances and agrees
with the rows, every receiver has every accepted finding, nothing is left claimed or running, and
the audit chain is whole. `pytest -s` shows how many duplicates were sent.
"""

import pytest

from tests.e2e.harness.misfortune import House
from tests.e2e.harness.ordeal import neighbourhood, undergo
from tests.support.faults import until

pytestmark = pytest.mark.stacks


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


def test_a_worker_frozen_in_the_middle_of_its_work_holds_nobody_up(service: House) -> None:
    """As a host that is cut off: its connections stand, and what they have locked stays locked."""
    with neighbourhood(service) as place, place.traffic() as traffic:
        until(lambda: len(traffic.accepted) > 100)
        with service.worker_frozen().lasting():
            until(lambda: len(traffic.accepted) > 300)
            traffic.end()
            closed = place.close_books(traffic.accepted)
    print(f"\na worker frozen: {closed}")
