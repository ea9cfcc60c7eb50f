"""Input types are strict: what passes is what was sent, and nothing is converted."""

import enum
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marshmallow import ValidationError
from marshmallow import fields as plain

from app import ids
from app.schemas import fields


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


ID = UUID("0192f0c1-a2b3-7c4d-8e5f-60718293a4b5")
ANYTHING = {"a": [1, 1.5, None, "\0", {"b": True}]}
NOT_TEXT: list[Any] = [5, 1.5, True, None, [], {}, ["a"]]
COUNTED = fields.Items(fields.Integer(1, 2), min_items=1, max_items=2)

# What each type takes, with what it becomes.
TAKEN: list[tuple[plain.Field[Any], list[tuple[Any, Any]]]] = [
    (fields.Text(10), [(t, t) for t in ("a", " a ", "é" * 10, "\U0001f600" * 10, "a\nb", "﻿a")]),
    (fields.Text(10, min_length=0), [("", "")]),
    (fields.Integer(1, 200), [(1, 1), (200, 200), (30.0, 30), (2e1, 20)]),
    (fields.Boolean(), [(True, True), (False, False)]),
    (fields.QueryBoolean(), [("true", True), ("false", False)]),
    (fields.Choice(Colour), [("red", Colour.RED)]),
    (fields.Id("agt"), [(ids.text("agt", ID), ID)]),
    (fields.JsonValue(100), [(ANYTHING, ANYTHING)]),
    (fields.JsonObject(100), [(ANYTHING, ANYTHING)]),
    # Measured in canonical bytes.
    (fields.JsonValue(4), [("ab", "ab"), ("é", "é")]),
    (fields.JsonValue(221), [([1e20] * 10, [1e20] * 10)]),
    (fields.JsonValue(4, allow_none=True), [(None, None)]),
    (fields.JsonObject(4, allow_none=True), [(None, None)]),
    (COUNTED, [([1, 2], [1, 2])]),
]
REFUSED: list[tuple[plain.Field[Any], list[Any]]] = [
    (fields.Text(10), [*NOT_TEXT, "", "a" * 11, "a\0b"]),
    (
        fields.Integer(1, 200),
        [True, False, "30", 1.5, 30.5, 201.0, None, 0, 201, -1, [1], {}],
    ),
    (
        fields.QueryInteger(-(10**18), 10**18),
        ["030", "+3", "1e2", " 3", "3 ", "3.0", "-0", "٣", "", "9" * 5000],
    ),
    (fields.Boolean(), ["true", "false", 0, 1, None, "", [], 1.0]),
    (fields.QueryBoolean(), ["True", "TRUE", "1", "yes", "", "on"]),
    (fields.Choice(Colour), ["RED", "red ", "", "green", 1, None, ["red"], {"red": 1}]),
    (
        fields.Id("agt"),
        [*NOT_TEXT, "", "agt_", "ses_" + "0" * 32, "agt_" + "G" * 32, "x" * 5000],
    ),
    (fields.JsonValue(4), ["abc", "éé", None]),
    # Canonical JSON writes these longer than any other: 21 digits each.
    (fields.JsonValue(219), [[1e20] * 10]),
    (fields.JsonObject(100), [[], "{}", 1, True, None]),
    # Counted before they are read.
    (COUNTED, [[], ["not", "an", "integer"], "12", {"0": 1}]),
]


@pytest.mark.parametrize(
    ("field", "sent", "read"),
    [(field, sent, read) for field, values in TAKEN for sent, read in values],
)
def test_what_a_type_takes_becomes_its_value(field: plain.Field[Any], sent: Any, read: Any) -> None:
    got = field.deserialize(sent)

    assert got == read
    assert type(got) is type(read)


@pytest.mark.parametrize(
    ("field", "sent"), [(field, sent) for field, values in REFUSED for sent in values]
)
def test_what_a_type_does_not_take_is_refused_with_one_reason(
    field: plain.Field[Any], sent: Any
) -> None:
    with pytest.raises(ValidationError) as error:
        field.deserialize(sent)
    assert len(error.value.messages) == 1


def test_a_refusal_names_the_form() -> None:
    for field, sent, said in (
        (fields.Id("agt"), "agt_", "agt_ and 32 digits"),
        (COUNTED, [], "1 to 2 items"),
        (COUNTED, ["not", "an", "integer"], "1 to 2 items"),
    ):
        with pytest.raises(ValidationError, match=said):
            field.deserialize(sent)


@given(st.integers(-(10**18), 10**18))
def test_every_integer_passes_in_its_own_spelling(number: int) -> None:
    assert fields.QueryInteger(-(10**18), 10**18).deserialize(str(number)) == number


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31t12:00:00z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("2026-01-31T12:00:00-00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00.5Z", datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
        ("2026-01-31T12:00:00.000001Z", datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)),
        ("2026-01-31T12:00:00.1234567Z", datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)),
        ("2026-01-31t12:00:00.999999999z", datetime(2026, 1, 31, 12, 0, 0, 999_999, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999999Z", datetime.max.replace(tzinfo=UTC)),
        (
            "1969-12-31T23:59:59.123456789+01:00",
            datetime(1969, 12, 31, 22, 59, 59, 123_456, tzinfo=UTC),
        ),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_a_time_is_rfc_3339(text: str, moment: datetime) -> None:
    assert fields.Time().deserialize(text) == moment


@pytest.mark.parametrize(
    "value",
    [
        *NOT_TEXT,
        "",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31 12:00:00Z",
        "2026-01-31T12:00:00 02:00",
        "2026-01-31T12:00Z",
        "2026-01-31T12:00:00+0200",
        "2026-01-31T12:00:60Z",
        "2026-01-31T24:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-13-01T12:00:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00.1234567890Z",
        "2026-01-31T12:00:00123Z",
        "2026-01-31T12:00:00+25:00",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "٢٠٢٦-01-31T12:00:00Z",
        "2026-W05-6T12:00:00Z",
        "infinity",
    ],
)
def test_what_is_no_moment_in_the_years_1_to_9999_is_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        fields.Time().deserialize(value)
