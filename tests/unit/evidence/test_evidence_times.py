"""Times as numbers: exact to the nanosecond, and no text that only looks like a time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.clock import rfc3339
from app.evidence.times import unix_nanoseconds

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.builds(
    lambda seconds, part, zone: (EPOCH + timedelta(0, seconds, part)).astimezone(zone),
    st.integers(-62_100_000_000, 253_300_000_000),
    st.integers(0, 999_999),
    offsets,
)


@given(moments)
def test_every_microsecond_of_every_zone_is_the_same_moment_as_the_clock_s(
    moment: datetime,
) -> None:
    exact = (moment - EPOCH) // timedelta(microseconds=1) * 1000
    assert unix_nanoseconds(moment.isoformat()) == exact
    assert unix_nanoseconds(rfc3339(moment)) == exact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999999999Z", -1),
        ("2026-01-31T12:00:00.123456789Z", 1769860800123456789),
        ("2026-01-31T12:00:00.1234567899Z", 1769860800123456789),
        ("2026-01-31t12:00:00.1z", 1769860800100000000),
        ("2026-01-31T15:30:00+03:30", 1769860800000000000),
        ("2016-12-31T23:59:60Z", 1483228800000000000),
    ],
)
def test_nanoseconds_offsets_and_leap_seconds_are_exact(text: str, expected: int) -> None:
    assert unix_nanoseconds(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31 12:00:00Z",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00Z\n",
        "2026-02-29T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:61Z",
        "2026-01-31T12:00:00+24:00",
        "2026-01-31T12:00:00+01:60",
        "2026-01-31T12:00:00+0100",
        "0000-01-31T12:00:00Z",
        "٢٠٢٦-01-31T12:00:00Z",
        "1769860800",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        unix_nanoseconds(text)
