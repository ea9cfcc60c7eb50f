"""Who finds a place in a worker process, whatever the others are doing."""

import pytest

from app.core.delivery.lanes import Standing
from jobs.room import KEPT_FOR_JOBS, Place, Room

THREADS = 64


def fill(room: Room, standing: Standing) -> list[Place]:
    """Have lanes of a kind enter until there is no room for another."""
    places = []
    while place := room.enter(standing):
        places.append(place)
    return places


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 24, 64])
def test_two_threads_are_kept_for_jobs_whoever_comes_and_there_is_room_for_each_kind(
    threads: int,
) -> None:
    for first in Standing:
        room = Room(threads)
        places = fill(room, first)
        assert places
        places += [place for kind in Standing for place in fill(room, kind)]
        assert len(places) <= max(1, threads - KEPT_FOR_JOBS)


def test_slow_lanes_leave_room_for_what_nobody_knows_and_both_leave_room_for_the_proven() -> None:
    room = Room(THREADS)
    assert len(fill(room, Standing.SLOW)) == THREADS // 4
    assert len(fill(room, Standing.UNKNOWN)) == THREADS // 2 - KEPT_FOR_JOBS
    assert len(fill(room, Standing.PROVEN)) == THREADS // 4


def test_proven_lanes_leave_half_to_the_others() -> None:
    room = Room(THREADS)
    assert len(fill(room, Standing.PROVEN)) == THREADS // 2
    assert len(fill(room, Standing.UNKNOWN)) == THREADS // 2 - KEPT_FOR_JOBS


def test_new_lanes_that_all_hang_keep_out_slow_ones_and_none_that_is_new() -> None:
    room = Room(THREADS)
    for _ in range(THREADS // 2):
        place = room.enter(Standing.UNKNOWN)
        assert place is not None
        place.turned_slow()
    assert room.enter(Standing.SLOW) is None
    assert room.enter(Standing.UNKNOWN) is not None


def test_a_proven_lane_that_hangs_makes_room_for_another_and_is_slow_from_then_on() -> None:
    room = Room(THREADS)
    places = fill(room, Standing.PROVEN)
    for place in places[: THREADS // 4]:
        place.turned_slow()
        place.turned_slow()
    assert room.enter(Standing.SLOW) is None
    assert len(fill(room, Standing.PROVEN)) == THREADS // 4


def test_every_place_that_was_left_can_be_taken_again() -> None:
    room = Room(THREADS)
    before = fill(room, Standing.UNKNOWN)
    for place in before:
        place.turned_slow()
        place.leave()
    assert len(fill(room, Standing.UNKNOWN)) == len(before)


def test_a_slow_lane_goes_behind_others_only_while_there_is_no_room_for_them() -> None:
    room = Room(THREADS)
    slow = fill(room, Standing.SLOW)
    assert slow[0].wanted()
    slow.pop().leave()
    assert not slow[0].wanted()
    assert not any(place.wanted() for place in fill(room, Standing.UNKNOWN))
