"""Retry-After is a stranger's text: whatever it says, reading it never fails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import clock
from app.core.delivery.retries import LONGEST_RETRY_AFTER, parse_retry_after

_WORDS = st.sampled_from(
    ["Mon,", "01", "Jan", "2024", "00:00:00", "GMT", "+99999999999999999", "9" * 30, ":", ",", "-1"]
)


@pytest.mark.parametrize(
    "value",
    [
        "Mon, 01 Jan 2024 00:00:00 +99999999999999999",
        "Mon, 99999999999999999999999 Jan 2024 01:01:01 GMT",
    ],
)
def test_a_date_that_no_calendar_holds_is_no_date(value: str) -> None:
    assert parse_retry_after(value, clock.now()) is None


@given(st.lists(_WORDS, max_size=7).map(" ".join) | st.text(max_size=64))
def test_no_text_breaks_it(value: str) -> None:
    wait = parse_retry_after(value, clock.now())
    assert wait is None or wait <= LONGEST_RETRY_AFTER
