"""The circuit breaker."""

from concurrent.futures import ThreadPoolExecutor

from app.lib.breaker import Breaker
from tests.support.faults import Hands


def test_after_a_failure_callers_are_held_back_until_the_period_is_over() -> None:
    clock = Hands()
    breaker = Breaker(60, clock)
    breaker.failed()

    assert not breaker.admits()
    clock.forward(59)
    assert not breaker.admits()
    clock.forward(2)
    assert breaker.admits()


def test_one_of_many_callers_is_admitted_as_the_probe() -> None:
    clock = Hands()
    breaker = Breaker(60, clock)
    breaker.failed()
    clock.forward(61)

    with ThreadPoolExecutor(16) as threads:
        admitted = [
            future.result() for future in [threads.submit(breaker.admits) for _ in range(16)]
        ]

    assert sorted(admitted) == [False] * 15 + [True]


def test_only_the_first_failure_and_the_first_success_are_news() -> None:
    breaker = Breaker(60)

    assert [breaker.failed(), breaker.failed()] == [True, False]
    assert [breaker.succeeded(), breaker.succeeded()] == [True, False]
