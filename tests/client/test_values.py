"""The rule by which values become JSON: what is converted, what is marked, what is refused."""

import dataclasses
import enum
import json
import sys
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_service import values
from record_service.values import Unfit

from app.lib import canonical_json


class Colour(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class Order:
    number: int
    cents: Decimal


class Hostile:
    def __repr__(self) -> str:
        raise ValueError("secret")


class Array(SimpleNamespace):
    """What NumPy's arrays offer."""

    dtype, nbytes = "int64", 24

    def tolist(self) -> list[int]:
        return [1, 2, 3]


Pair = namedtuple("Pair", "left right")  # noqa: PYI024  # as strangers write them
cycle: list[Any] = []
cycle.append(cycle)
deep: list[Any] = []
for _ in range(500):
    deep = [deep]

CONVERTED = [
    (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00+00:00"),
    (date(2026, 1, 31), "2026-01-31"),
    (timedelta(minutes=1), 60.0),
    (Decimal("1.10"), "1.10"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (PurePosixPath("/tmp/x"), "/tmp/x"),
    (b"\xff\x00", {"base64": "/wA="}),
    ({3, 1, 2}, [1, 2, 3]),
    (Colour.RED, 1),
    (Order(7, Decimal("0.1")), {"number": 7, "cents": "0.1"}),
    (Pair(1, (2,)), {"left": 1, "right": [2]}),
    (Array(), [1, 2, 3]),
    (ValueError("no"), {"type": "ValueError", "message": "no"}),
    ({1: "a", "1": "b", None: "c"}, {"1": "a", "1 (2)": "b", "null": "c"}),
]
MARKED = [
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
    (2**60, "1152921504606846976"),
    (1e17, "1e+17"),
    (10**5000, hex(10**5000)),
    ("a\ud800b", "a\ufffdb"),
    (cycle, ["<cycle>"]),
    (Hostile(), "<unreadable: ValueError>"),
]


@pytest.mark.parametrize(("value", "expected"), CONVERTED, ids=map(str, range(len(CONVERTED))))
def test_what_has_a_plain_form_is_converted_strictly_too(value: Any, expected: Any) -> None:
    assert values.fit(value) == expected
    assert values.fit(value, strict=True) == expected


@pytest.mark.parametrize(("value", "expected"), MARKED, ids=map(str, range(len(MARKED))))
def test_what_has_none_is_marked_or_refused_with_its_path(value: Any, expected: Any) -> None:
    assert values.fit({"x": [value]}) == {"x": [expected]}
    with pytest.raises(Unfit) as refused:
        values.fit({"x": [value]}, strict=True, path="/inputs")
    assert refused.value.path.startswith("/inputs/x/0")
    assert "secret" not in str(refused.value)


def test_depth_and_size_are_bounded() -> None:
    assert "<too deep>" in json.dumps(values.fit(deep))
    assert values.fit(["x" * 100], most=50) == "<too large: more than 50 bytes>"
    for each in (deep, "x" * (values.MAX_BYTES + 1)):
        with pytest.raises(Unfit):
            values.fit(each, strict=True)


def test_a_mask_sees_every_text_number_and_name() -> None:
    def hide(text: str, _: str) -> str:
        return text.replace("4111", "****")

    card = {"4111": 41110, "list": [b"4111", ("4111",)], "error": ValueError("4111"), "n": 7}
    found = values.fit(card, mask=hide)
    assert "4111" not in json.dumps(found)
    assert found["n"] == 7


@pytest.mark.parametrize("wrong", [lambda *_: 1 / 0, lambda *_: None, lambda *_: b"4111"])
def test_what_a_mask_fails_on_is_dropped(wrong: Any) -> None:
    found = json.dumps(values.fit({"card": ["4111", 4111]}, mask=wrong))
    assert "4111" not in found
    assert "<masked" in found


def test_names_that_a_mask_makes_one_take_no_more_work_the_more_there_are() -> None:
    lines = 0

    def count(*_: Any) -> Any:
        nonlocal lines
        lines += 1
        return count

    cards = {str(number): number for number in range(500)}
    traced = sys.gettrace()
    sys.settrace(count)
    try:
        found = values.fit(cards, mask=lambda *_: "<card>")
    finally:
        sys.settrace(traced)
    assert list(found)[:3] == ["<card>", "<card> (2)", "<card> (3)"]
    assert len(found) == 500
    assert lines < 150 * 500


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(_ANY)
def test_whatever_comes_out_is_json_that_the_service_takes(value: Any) -> None:
    found = values.fit(value)
    assert canonical_json.parse(values.encode(found).encode()) == found
    assert values.fit(found) == found
