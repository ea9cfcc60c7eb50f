"""The bulkhead of a worker process: permits by tenant, for slow lanes and others."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.process.bulkhead import KEPT_FOR_JOBS, Bulkhead, Permit

THREADS = 128
MOST = THREADS - KEPT_FOR_JOBS
# What a webhook with `max_in_flight` 16 needs of each of two processes to keep half of its rate.
HALF_OF_SIXTEEN = 4


def fill(
    bulkhead: Bulkhead, tenant: UUID, lane: UUID | None = None, *, slow: bool = True
) -> list[Permit]:
    """Take permits for a tenant, at one lane or each at another, until its share is used up."""
    permits = []
    while permit := bulkhead.acquire(tenant, lane or uuid4(), slow=slow):
        permits.append(permit)
    return permits


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 24, 64, 128])
@pytest.mark.parametrize("slow", [True, False])
def test_two_threads_are_kept_for_jobs_and_slow_lanes_leave_a_third(
    threads: int, slow: bool
) -> None:
    bulkhead, most = Bulkhead(threads), max(1, threads - KEPT_FOR_JOBS)
    permits = [p for _ in range(threads) for p in fill(bulkhead, uuid4(), slow=slow)]
    assert len(permits) == (max(1, most * 2 // 3) if slow else most)
    others = [p for _ in range(threads) for p in fill(bulkhead, uuid4(), slow=not slow)]
    assert len(permits) + len(others) == most if slow else not others


def test_a_tenant_whose_turns_all_hang_leaves_others_their_parallelism() -> None:
    bulkhead = Bulkhead(THREADS)
    assert len(fill(bulkhead, uuid4())) == MOST // 3 + 1
    assert len(fill(bulkhead, uuid4())) >= 2 * HALF_OF_SIXTEEN
    assert len(fill(bulkhead, uuid4())) >= HALF_OF_SIXTEEN


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("threads", [24, 32, 128])
def test_the_last_thread_of_a_tenant_is_for_a_lane_that_has_none(threads: int, slow: bool) -> None:
    bulkhead, tenant = Bulkhead(threads), uuid4()
    fill(bulkhead, tenant, uuid4(), slow=slow)
    assert bulkhead.acquire(tenant, uuid4(), slow=slow) is not None


def test_a_slow_lane_yields_only_while_there_is_no_thread_for_another() -> None:
    bulkhead, tenant = Bulkhead(THREADS), uuid4()
    permits = fill(bulkhead, tenant)
    quick = bulkhead.acquire(tenant, uuid4(), slow=False)
    assert quick is not None
    assert bulkhead.should_yield(permits[0])
    assert not bulkhead.should_yield(quick)
    for permit in permits[:2]:
        bulkhead.release(permit)
    assert not bulkhead.should_yield(permits[-1])


def test_threads_that_come_free_go_to_the_tenant_that_has_fewest() -> None:
    bulkhead, many, few = Bulkhead(THREADS), uuid4(), uuid4()
    held, mine = fill(bulkhead, many), fill(bulkhead, few)
    for _ in range(2 * MOST):
        bulkhead.release(held.pop())
        if permit := bulkhead.acquire(many, uuid4(), slow=True):
            assert len(held) <= len(mine) + 2
            held.append(permit)
        mine += fill(bulkhead, few)
    assert abs(len(mine) - len(held)) <= 3


@given(
    st.integers(1, 64),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.booleans(), st.booleans())),
)
def test_however_turns_come_and_go_permits_are_never_too_many_and_none_is_lost(
    threads: int, steps: list[tuple[int, int, bool, bool]]
) -> None:
    bulkhead, tenants = Bulkhead(threads), [uuid4() for _ in range(5)]
    held: list[Permit] = []
    first = len(fill(Bulkhead(threads), tenants[0]))
    for tenant, which, slow, leaves in steps:
        if leaves and held:
            bulkhead.release(held.pop(which % len(held)))
        elif permit := bulkhead.acquire(tenants[tenant], UUID(int=which), slow=slow):
            held.append(permit)
        assert len(held) <= max(1, threads - KEPT_FOR_JOBS)
    for permit in held:
        bulkhead.release(permit)
    assert len(fill(bulkhead, tenants[0])) == first
