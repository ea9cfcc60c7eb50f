"""The bulkhead of a worker process: permits by tenant, lane and kind."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.delivery.lanes.lanes import Kind
from jobs.process.bulkhead import KEPT_FOR_JOBS, SHARE_OF_A_KIND, Bulkhead, Permit

QUICK, UNTRIED, SLOW = Kind.QUICK, Kind.UNTRIED, Kind.SLOW
THREADS = 64
SHARE = THREADS // SHARE_OF_A_KIND
OF_A_KIND = THREADS - KEPT_FOR_JOBS - 2 * SHARE
# As many webhooks as one tenant may have that nobody has tried, in each of two processes.
DEAD = 30
# What a webhook with `max_in_flight` 16 needs of each of two processes to keep half of its rate.
HALF_OF_SIXTEEN = 4


def fill(
    bulkhead: Bulkhead, tenant: UUID, lane: UUID | None = None, kind: Kind = SLOW
) -> list[Permit]:
    """Have turns of a tenant enter until there is no room, at one lane or each at another."""
    permits = []
    while permit := bulkhead.acquire(tenant, lane or uuid4(), kind):
        permits.append(permit)
    return permits


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 24, 64])
@pytest.mark.parametrize("kind", Kind)
def test_two_threads_are_kept_for_jobs_and_there_is_room_for_each_kind(
    threads: int, kind: Kind
) -> None:
    bulkhead = Bulkhead(threads)
    permits = fill(bulkhead, uuid4(), kind=kind)
    assert permits
    for _ in range(threads):
        permits += fill(bulkhead, uuid4(), kind=kind)
    for other in Kind:
        others = [permit for _ in range(threads) for permit in fill(bulkhead, uuid4(), kind=other)]
        assert others or other is kind or threads < SHARE_OF_A_KIND
        permits += others
    assert len(permits) <= max(1, threads - KEPT_FOR_JOBS)


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_leaves_a_sixth_of_the_threads_to_each_other(kind: Kind) -> None:
    bulkhead = Bulkhead(THREADS)
    for _ in range(THREADS):
        fill(bulkhead, uuid4(), kind=kind)
    assert bulkhead.acquire(uuid4(), uuid4(), kind) is None
    for other in Kind:
        if other is not kind:
            found = [p for _ in range(THREADS) for p in fill(bulkhead, uuid4(), kind=other)]
            assert len(found) == SHARE


def test_what_hangs_holds_no_place_of_an_untried_lane_whoever_owns_them() -> None:
    bulkhead, tenant = Bulkhead(THREADS), uuid4()
    for owner in [tenant, *(uuid4() for _ in range(THREADS))]:
        for permit in fill(bulkhead, owner):
            bulkhead.note_hanging(permit)
    assert bulkhead.acquire(uuid4(), uuid4(), SLOW) is None
    assert bulkhead.acquire(tenant, uuid4(), UNTRIED) is not None
    assert bulkhead.acquire(uuid4(), uuid4(), UNTRIED) is not None


def test_a_new_lane_is_tried_beside_the_new_ones_of_its_owner_that_have_begun_to_hang() -> None:
    bulkhead, tenant = Bulkhead(THREADS), uuid4()
    for _ in range(DEAD):
        permit = bulkhead.acquire(tenant, uuid4(), UNTRIED)
        assert permit is not None
        bulkhead.note_hanging(permit)
    assert bulkhead.acquire(tenant, uuid4(), UNTRIED) is not None
    assert len(fill(bulkhead, uuid4(), uuid4())) >= HALF_OF_SIXTEEN
    assert len(fill(bulkhead, uuid4(), uuid4(), QUICK)) >= HALF_OF_SIXTEEN


def test_a_slow_webhook_alone_has_all_the_posts_out_that_it_may() -> None:
    assert len(fill(Bulkhead(THREADS), uuid4(), uuid4())) >= 16


def test_a_tenant_whose_turns_all_hang_leaves_another_its_parallelism() -> None:
    bulkhead = Bulkhead(THREADS)
    assert len(fill(bulkhead, uuid4())) == OF_A_KIND // 2 + 1
    assert len(fill(bulkhead, uuid4(), uuid4())) >= 2 * HALF_OF_SIXTEEN


def test_two_tenants_whose_turns_all_hang_leave_a_third_half_of_its_parallelism() -> None:
    bulkhead = Bulkhead(THREADS)
    for _ in range(2):
        fill(bulkhead, uuid4())
    assert len(fill(bulkhead, uuid4(), uuid4())) >= HALF_OF_SIXTEEN


def test_places_that_come_free_go_to_the_tenant_that_has_fewest() -> None:
    bulkhead, many, few, lane = Bulkhead(THREADS), uuid4(), uuid4(), uuid4()
    held = fill(bulkhead, many)
    mine = fill(bulkhead, few, lane)
    for _ in range(2 * OF_A_KIND):
        bulkhead.release(held.pop())
        if permit := bulkhead.acquire(many, uuid4(), SLOW):
            assert len(held) <= len(mine) + 2
            held.append(permit)
        mine += fill(bulkhead, few, lane)
    assert abs(len(mine) - len(held)) <= 3


def test_the_last_place_of_a_tenant_is_for_a_lane_that_has_none() -> None:
    bulkhead, tenant, lane = Bulkhead(THREADS), uuid4(), uuid4()
    fill(bulkhead, tenant, lane)
    assert bulkhead.acquire(tenant, uuid4(), SLOW) is not None


def test_quick_lanes_of_one_tenant_that_all_begin_to_hang_leave_room_for_others() -> None:
    bulkhead, tenant = Bulkhead(THREADS), uuid4()
    while permits := fill(bulkhead, tenant, kind=QUICK):
        for permit in permits:
            bulkhead.note_hanging(permit)
            bulkhead.note_hanging(permit)
    assert len(fill(bulkhead, uuid4(), kind=QUICK)) >= 8


def test_a_lane_that_hung_makes_room_for_quick_ones_and_takes_it_from_the_others() -> None:
    bulkhead, tenant = Bulkhead(THREADS), uuid4()
    quick = [permit for _ in range(THREADS) for permit in fill(bulkhead, uuid4(), kind=QUICK)]
    assert bulkhead.acquire(tenant, uuid4(), QUICK) is None
    for permit in quick:
        bulkhead.note_hanging(permit)
    assert bulkhead.acquire(tenant, uuid4(), QUICK) is not None
    assert bulkhead.acquire(tenant, uuid4(), SLOW) is None


def test_a_lane_goes_behind_others_of_its_tenant_only_while_there_is_no_room_for_them() -> None:
    bulkhead, tenant = Bulkhead(THREADS), uuid4()
    permits = fill(bulkhead, tenant)
    quick = bulkhead.acquire(tenant, uuid4(), QUICK)
    assert quick is not None
    assert bulkhead.should_yield(permits[0])
    assert not bulkhead.should_yield(quick)
    bulkhead.note_hanging(quick)
    assert bulkhead.should_yield(quick)
    bulkhead.release(quick)
    for permit in permits[:2]:
        bulkhead.release(permit)
    assert not bulkhead.should_yield(permits[-1])


def test_a_slow_lane_that_found_no_room_is_known_for_a_while_and_enters_when_a_place_is_free() -> (
    None
):
    now = [0.0]
    bulkhead, tenant, lane = Bulkhead(THREADS, lambda: now[0]), uuid4(), uuid4()
    permits = fill(bulkhead, tenant)
    assert not bulkhead.turns_away(tenant, lane)
    assert bulkhead.acquire(tenant, lane, SLOW) is None
    bulkhead.turn_away(tenant, lane)
    assert bulkhead.turns_away(tenant, lane)
    assert not bulkhead.turns_away(uuid4(), lane)
    for permit in permits[:2]:
        bulkhead.release(permit)
    assert not bulkhead.turns_away(tenant, lane)
    fill(bulkhead, tenant)
    assert bulkhead.turns_away(tenant, lane)
    now[0] = 10.0
    assert not bulkhead.turns_away(tenant, lane)


@given(
    st.integers(1, 64),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.sampled_from(Kind), st.booleans())),
)
def test_however_turns_come_and_go_places_are_never_too_many_and_none_is_lost(
    threads: int, steps: list[tuple[int, int, Kind, bool]]
) -> None:
    bulkhead, tenants = Bulkhead(threads), [uuid4() for _ in range(5)]
    held: list[Permit] = []
    first = len(fill(Bulkhead(threads), tenants[0]))
    for tenant, lane, kind, leaves in steps:
        if leaves and held:
            bulkhead.release(held.pop(lane % len(held)))
        elif permit := bulkhead.acquire(tenants[tenant], UUID(int=tenant * 10 + lane), kind):
            held.append(permit)
            if lane == 0:
                bulkhead.note_hanging(permit)
        assert len(held) <= max(1, threads - KEPT_FOR_JOBS)
    for permit in held:
        bulkhead.release(permit)
    assert len(fill(bulkhead, tenants[0])) == first
