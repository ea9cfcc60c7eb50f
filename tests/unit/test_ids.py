"""Identifiers: version 7 UUIDs that sort by age, and their text."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import ids

MOMENT = datetime(2026, 11, 21, 12, 0, 0, 123000, tzinfo=UTC)


def test_an_id_is_a_version_7_uuid_that_carries_its_time() -> None:
    identifier = ids.new()
    assert (identifier.version, identifier.variant) == (7, "specified in RFC 4122")
    assert abs(ids.made_at(identifier) - datetime.now(UTC)) < timedelta(minutes=1)


def test_ids_made_in_a_row_sort_in_that_order_but_for_the_finest_ticks() -> None:
    made = [ids.new() for _ in range(10_000)]
    assert [each.int >> 64 for each in made] == sorted(each.int >> 64 for each in made)
    assert len(set(made)) == 10_000


def test_an_id_of_a_moment_carries_that_moment() -> None:
    assert ids.made_at(ids.new(MOMENT)) == MOMENT


def test_the_earliest_id_of_a_moment_bounds_all_of_its_ids() -> None:
    assert (
        ids.earliest_at(MOMENT)
        < ids.new(MOMENT)
        < ids.earliest_at(MOMENT + timedelta(milliseconds=1))
    )


@pytest.mark.parametrize("year", [1, 9999])
def test_no_moment_is_too_far(year: int) -> None:
    assert isinstance(ids.earliest_at(datetime(year, 12, 31, tzinfo=UTC)), UUID)


def test_no_id_is_of_a_moment_too_far() -> None:
    assert ids.made_at(UUID(int=2**128 - 1)).year == 9999
    assert ids.made_at(UUID(int=0)).year == 1970


@given(st.uuids())
def test_text_and_back(identifier: UUID) -> None:
    assert ids.parse("agt", ids.text("agt", identifier)) == identifier


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agt_",
        "ses_01a1fd76d0037ef3a0000000000000ab",
        "agt_01A1FD76D0037EF3A0000000000000AB",
        "agt_01a1fd76d0037ef3a0000000000000ab\n",
        " agt_01a1fd76d0037ef3a0000000000000ab",
        "agt_01a1fd76-d003-7ef3-a000-0000000000ab",
        "agt_01a1fd76d0037ef3a0000000000000a",
        "agt_\uff101a1fd76d0037ef3a0000000000000ab",
    ],
)
def test_other_text_is_no_id(text: str) -> None:
    assert ids.parse("agt", text) is None
