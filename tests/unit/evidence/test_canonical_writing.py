"""Canonical JSON (RFC 8785) is written as its reference writes it."""

import json
import math
import random
import struct
from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from app.lib.canonical_json import MAX_INTEGER, NotIJSON, dumps, parse

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-MAX_INTEGER, MAX_INTEGER),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=12,
)


def is_read_back(value: Any) -> bool:
    """Whether no number in it is an integer that only a double's spelling could bring in."""
    if isinstance(value, float):
        return not MAX_INTEGER < abs(value) < 1e21
    if isinstance(value, dict):
        return all(is_read_back(item) for item in value.values())
    if isinstance(value, list):
        return all(is_read_back(item) for item in value)
    return True


@settings(max_examples=200)
@given(documents)
def test_documents_are_written_as_the_reference_writes_them_and_read_back(value: Any) -> None:
    written = dumps(value)
    assert written == rfc8785.dumps(value)
    try:
        accepted = parse(json.dumps(value).encode())
    except NotIJSON:
        assert not is_read_back(value)
        return
    assert is_read_back(value)
    assert parse(dumps(accepted)) == value
    assert parse(written) == value
    assert dumps(parse(written)) == written


def test_doubles_of_any_bits_are_written_as_the_reference_writes_them() -> None:
    every = struct.unpack(">20000d", random.randbytes(160_000))
    values = [value for value in every if math.isfinite(value)]
    assert dumps(values) == rfc8785.dumps(values)


def test_every_character_is_escaped_as_the_reference_escapes_it() -> None:
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert dumps("".join(every)) == rfc8785.dumps("".join(every))


def test_the_example_of_the_rfc_is_read_and_written() -> None:
    raw = rb"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    assert (
        dumps(parse(raw))
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_names_are_ordered_by_utf_16_code_units_and_not_by_code_points() -> None:
    names = ["€", "\r", "\ufb33", "1", "😀", "\u0080", "ö"]
    written = dumps(dict.fromkeys(names, 0))
    assert list(json.loads(written)) == ["\r", "1", "\u0080", "ö", "€", "😀", "\ufb33"]


def test_a_subclass_is_written_as_the_type_it_comes_from() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Level(IntEnum):
        HIGH = 3

    class Pair(NamedTuple):
        left: int
        right: str

    value = OrderedDict({"pair": Pair(1, "two"), "level": Level.HIGH, Colour.RED: Colour.RED})
    assert dumps(value) == b'{"level":3,"pair":[1,"two"],"red":"red"}'


@pytest.mark.parametrize(
    "value",
    [
        b"bytes",
        {1, 2},
        object(),
        datetime.now(UTC),
        Decimal(1),
        1j,
        {1: 2},
        {"a": 1, 2: 3},
        {None: 1},
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": [value]}])
def test_a_type_without_a_json_form_is_a_type_error(value: object, wrap: Any) -> None:
    with pytest.raises(TypeError):
        dumps(wrap(value))


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, 2**53, -(2**53), 10**5000, "\ud800", {"\udfff": 1}],
    ids=["nan", "inf", "-inf", "2^53", "-2^53", "10^5000", "surrogate", "surrogate name"],
)
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: {"a": [value]}])
def test_a_value_that_canonical_json_cannot_hold_is_a_value_error(value: object, wrap: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        dumps(wrap(value))


def test_a_value_that_holds_itself_is_a_value_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="holds itself"):
        dumps(endless)
