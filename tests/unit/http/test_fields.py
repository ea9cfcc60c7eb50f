"""Input types are strict: what passes is what was sent, and nothing is converted."""

import enum
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import marshmallow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marshmallow import ValidationError
from marshmallow import fields as plain

from app import fields, ids
from app.api.resources.findings import NewFindingSchema, NewFindingsSchema
from app.lib.canonical_json import MAX_INTEGER
from app.schemas import Schema


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


NOT_TEXT: list[Any] = [5, 1.5, True, None, [], {}, ["a"]]


def refused(field: plain.Field[Any], value: Any) -> str:
    with pytest.raises(ValidationError) as error:
        field.deserialize(value)
    (message,) = error.value.messages
    return str(message)


@pytest.mark.parametrize("text", ["a", " a ", "é" * 10, "\U0001f600" * 10, "a\nb", "﻿a"])
def test_text_passes_as_it_was_sent(text: str) -> None:
    assert fields.Text(10).deserialize(text) == text


@pytest.mark.parametrize("value", [*NOT_TEXT, "", "a" * 11, "a\0b"])
def test_text_refuses_other_types_and_what_cannot_be_stored(value: Any) -> None:
    assert refused(fields.Text(10), value)


def test_text_may_be_empty_where_the_field_says_so() -> None:
    assert fields.Text(10, min_length=0).deserialize("") == ""


@pytest.mark.parametrize("number", [1, 200, 30.0, 2e1])
def test_an_integer_passes_however_json_spells_it(number: float) -> None:
    read = fields.Integer(1, 200).deserialize(number)

    assert read == number
    assert type(read) is int


@pytest.mark.parametrize("value", [True, False, "30", 1.5, 30.5, 201.0, None, 0, 201, -1, [1], {}])
def test_what_is_no_integer_in_range_is_refused(value: Any) -> None:
    assert refused(fields.Integer(1, 200), value)


@pytest.mark.parametrize("text", ["030", "+3", "1e2", " 3", "3 ", "3.0", "-0", "٣", "", "9" * 5000])
def test_a_query_integer_has_one_spelling(text: str) -> None:
    assert refused(fields.QueryInteger(-(10**18), 10**18), text)


@given(st.integers(-(10**18), 10**18))
def test_every_integer_passes_in_its_own_spelling(number: int) -> None:
    assert fields.QueryInteger(-(10**18), 10**18).deserialize(str(number)) == number


@pytest.mark.parametrize("value", ["true", "false", 0, 1, None, "", [], 1.0])
def test_only_true_and_false_are_booleans(value: Any) -> None:
    for boolean in (True, False):
        assert fields.Boolean().deserialize(boolean) is boolean
    assert refused(fields.Boolean(), value)


@pytest.mark.parametrize("text", ["True", "TRUE", "1", "yes", "", "on"])
def test_a_query_boolean_has_two_spellings(text: str) -> None:
    assert fields.QueryBoolean().deserialize("true") is True
    assert fields.QueryBoolean().deserialize("false") is False
    assert refused(fields.QueryBoolean(), text)


@pytest.mark.parametrize("value", ["RED", "red ", "", "green", 1, None, ["red"], {"red": 1}])
def test_a_choice_is_one_of_its_values(value: Any) -> None:
    assert fields.Choice(Colour).deserialize("red") is Colour.RED
    assert refused(fields.Choice(Colour), value)


def test_an_id_becomes_its_uuid() -> None:
    identifier = ids.new()

    assert fields.Id("agt").deserialize(ids.text("agt", identifier)) == identifier


@pytest.mark.parametrize("text", ["", "agt_", "ses_" + "0" * 32, "agt_" + "G" * 32, "x" * 5000])
def test_an_id_that_cannot_be_is_refused_with_its_form(text: str) -> None:
    assert "agt_ and 32 digits" in refused(fields.Id("agt"), text)


@pytest.mark.parametrize("value", NOT_TEXT)
def test_an_id_is_a_string(value: Any) -> None:
    assert refused(fields.Id("agt"), value)


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
    assert refused(fields.Time(), value)


def test_json_passes_as_it_is() -> None:
    value = {"a": [1, 1.5, None, "\0", {"b": True}]}

    assert fields.JsonValue(100).deserialize(value) is value
    assert fields.JsonObject(100).deserialize(value) is value


def test_json_is_measured_in_canonical_bytes() -> None:
    assert fields.JsonValue(4).deserialize("ab") == "ab"
    assert fields.JsonValue(4).deserialize("é") == "é"
    assert refused(fields.JsonValue(4), "abc")
    assert refused(fields.JsonValue(4), "éé")


@pytest.mark.parametrize("value", [[], "{}", 1, True])
def test_a_json_object_is_an_object(value: Any) -> None:
    assert refused(fields.JsonObject(100), value)


@pytest.mark.parametrize("field", [fields.JsonValue, fields.JsonObject])
def test_null_is_json_only_where_it_is_named(
    field: type[fields.JsonValue],
) -> None:
    assert refused(field(100), None)
    assert field(100, allow_none=True).deserialize(None) is None


def test_items_are_counted_before_they_are_read() -> None:
    field = fields.Items(fields.Integer(1, 2), min_items=1, max_items=2)

    assert field.deserialize([1, 2]) == [1, 2]
    assert "1 to 2 items" in refused(field, [])
    assert "1 to 2 items" in refused(field, ["not", "an", "integer"])
    assert refused(field, "12")
    assert refused(field, {"0": 1})


def test_unknown_fields_are_refused_by_name() -> None:
    class Narrow(Schema):
        known = fields.Integer(1, 2)

    with pytest.raises(ValidationError) as error:
        Narrow().load({"known": 1, "other": 2})

    assert error.value.messages == {"other": ["Unknown field."]}


FINDING = {
    "session_id": "ses_" + "1" * 32,
    "rule": "r",
    "severity": "high",
    "title": "t",
}
# A body that was parsed holds no other integers.
INTEGERS = st.integers(-MAX_INTEGER, MAX_INTEGER)
ODD = st.none() | st.booleans() | INTEGERS | st.text(max_size=4) | st.just("high")
NAMES = st.sampled_from([*FINDING, "detail", "data", "record_id", "unknown"])


def verdict(read: Callable[[], Any]) -> Any:
    """Return what was read, or what was said against it."""
    try:
        return read()
    except ValidationError as error:
        return error.messages


@given(st.dictionaries(NAMES, ODD | st.lists(ODD, max_size=2)), st.sets(NAMES), st.booleans())
def test_the_quick_reading_says_what_marshmallow_says(
    changes: dict[str, Any], dropped: set[str], whole: bool
) -> None:
    body: Any = {name: value for name, value in (FINDING | changes).items() if name not in dropped}
    schema: Schema = NewFindingSchema()
    if whole:
        schema, body = NewFindingsSchema(), {"findings": [FINDING, body]}
    expected = verdict(lambda: marshmallow.Schema.load(schema, body))
    assert verdict(lambda: schema.load(body)) == expected


@pytest.mark.parametrize("body", [None, [], "x", 1, {}, FINDING])
def test_the_quick_reading_takes_objects_alone(body: Any) -> None:
    schema = NewFindingSchema()
    expected = verdict(lambda: marshmallow.Schema.load(schema, body))
    assert verdict(lambda: schema.load(body)) == expected
