"""The timetable: data, and the arithmetic of when."""

import re
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from app.queue import ACTORS
from scheduler.timetable import TIMETABLE, Entry

entries = st.builds(
    Entry,
    name=st.just("entry"),
    actor=st.just("sweep"),
    every=st.integers(1, 10**6),
    offset=st.integers(0, 10**6),
)


@given(entries, st.floats(0, 4e9))
def test_the_next_time_is_the_first_of_the_entrys_times_after_the_moment(
    entry: Entry, moment: float
) -> None:
    following = entry.next_after(moment)

    assert (following - entry.offset) % entry.every == 0
    assert moment < following <= moment + entry.every


def test_a_daily_entry_comes_once_a_day_at_its_hour_in_utc() -> None:
    entry = Entry("daily", actor="sweep", every=86_400, offset=3 * 3600 + 17 * 60)
    before = datetime(2026, 3, 8, 3, 16, 59, tzinfo=UTC)

    first = datetime.fromtimestamp(entry.next_after(before.timestamp()), UTC)
    second = datetime.fromtimestamp(entry.next_after(first.timestamp()), UTC)

    assert first == datetime(2026, 3, 8, 3, 17, tzinfo=UTC)
    assert second == datetime(2026, 3, 9, 3, 17, tzinfo=UTC)


def test_every_entry_rings_an_actor_that_the_bell_knows() -> None:
    assert {entry.actor for entry in TIMETABLE.values()} <= set(ACTORS)


def test_every_entry_has_a_name_that_rq_takes_and_its_own_period() -> None:
    for name, entry in TIMETABLE.items():
        assert name == entry.name
        assert re.fullmatch(r"[A-Za-z0-9_-]+", name)
        assert entry.every >= 1
        assert 0 <= entry.offset < entry.every


def test_a_sweep_that_waited_five_seconds_is_stale() -> None:
    assert (TIMETABLE["sweep"].every, TIMETABLE["sweep"].max_age) == (1, 5)
