"""The types of JSON values: read strictly, described in OpenAPI, and written into answers.

Nothing is converted, trimmed or guessed: `"30"`, `true` and `1.5` are no integers, `"true"` and `1`
no booleans, and null passes only where a field names it (`allow_none=True`). A query string knows
only text: its own integers and booleans take the canonical spelling.
"""

import enum
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from uuid import UUID

from marshmallow import ValidationError, fields

from app import ids
from app.clock import rfc3339
from app.lib import canonical_json

# A thousand findings can be wrong in many places each; a reader stops long before this. Nothing is
# checked further once so much is wrong: each fault costs marshmallow more than a good value does.
MOST_ERRORS = 100

# What a `reader` raises where `deserialize` has more to say.
REFUSED = ValidationError("Refused.")


class Described(fields.Field[Any]):
    """A field with a `description` and an `example` for the OpenAPI document.

    `reader` returns what reads a value that is there and not null, as `deserialize` does; its error
    need not say what is wrong (see `Schema.load`).
    """

    default_error_messages = {  # noqa: RUF012  # marshmallow's own spelling
        "required": "This field is required.",
        "null": "null is not allowed here.",
    }

    def __init__(
        self,
        *arguments: Any,
        description: str | None = None,
        example: Any = None,
        metadata: Mapping[str, Any] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        documented = {"description": description, "example": example}
        given = {name: value for name, value in documented.items() if value is not None}
        super().__init__(*arguments, metadata={**metadata, **given}, **options)

    def reader(self) -> Callable[[Any], Any]:
        """Return marshmallow's own."""
        return self.deserialize


class Strict(Described):
    """A field that takes JSON of one form and converts nothing."""

    #: The JSON Schema of the values that pass, null aside.
    json_schema: Mapping[str, Any] = MappingProxyType({})

    def reader(self) -> Callable[[Any], Any]:
        """Return the field's own conversion, unless there is more to do."""
        if self.validators or self.pre_load or self.post_load:
            return self.deserialize
        read: Callable[..., Any] = self._deserialize
        return read

    def described(self) -> dict[str, Any]:
        """Return the JSON Schema of this field, null and what its metadata narrows included."""
        schema = dict(self.json_schema)
        schema |= {name: self.metadata[name] for name in schema.keys() & self.metadata.keys()}
        if self.allow_none and "type" in schema:
            schema["type"] = [schema["type"], "null"]
            if "enum" in schema:
                schema["enum"] = [*schema["enum"], None]
        return schema


class Text(Strict):
    """A string of `min_length` to `max_length` characters, without U+0000.

    PostgreSQL's text cannot hold U+0000.
    """

    def __init__(self, max_length: int, *, min_length: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.min_length = min_length
        self.max_length = max_length
        self.json_schema = {
            "type": "string",
            "minLength": min_length,
            "maxLength": max_length,
            "pattern": r"^[^\u0000]*$",
        }

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> str:
        text = _text(value)
        if "\0" in text:
            raise ValidationError("U+0000 is not allowed here.")
        if len(text) > self.max_length:
            raise ValidationError(f"At most {self.max_length} characters; this has {len(text)}.")
        if len(text) < self.min_length:
            raise ValidationError(f"Too short; send at least {self.min_length} in length.")
        return text


class ExternalId(Text):
    """An agent's or session's id in the words of its owner, unique in the tenant."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("description", "Your own id for it, unique in the tenant.")
        options.setdefault("example", "invoice-assistant@finance")
        super().__init__(500, **options)


class AnyText(Strict):
    """Any string; its content is validated elsewhere."""

    json_schema: Mapping[str, Any] = MappingProxyType({"type": "string"})

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> str:
        return _text(value)


class Integer(Strict):
    """A JSON integer from `minimum` to `maximum`."""

    def __init__(self, minimum: int, maximum: int, **options: Any) -> None:
        super().__init__(**options)
        self.minimum = minimum
        self.maximum = maximum
        self.json_schema = {"type": "integer", "minimum": minimum, "maximum": maximum}

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> int:
        number = self._read(value)
        if number is None or not self.minimum <= number <= self.maximum:
            raise ValidationError(f"Send an integer from {self.minimum} to {self.maximum}.")
        return number

    def _read(self, value: Any) -> int | None:
        # 30.0 and 3e1 are other spellings of 30 (RFC 8785 writes all three alike).
        if type(value) is float and value.is_integer():
            return int(value)
        return value if type(value) is int else None


class Count(Integer):
    """A JSON integer from `minimum` up to the largest of I-JSON (RFC 7493)."""

    def __init__(self, minimum: int = 0, **options: Any) -> None:
        super().__init__(minimum, canonical_json.MAX_INTEGER, **options)


class QueryInteger(Integer):
    """An integer in a query string: `30`, and not `030`, `+3` or `1e2`."""

    _CANONICAL = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)

    def _read(self, value: Any) -> int | None:
        # A repeated parameter arrives as a list.
        written = isinstance(value, str) and self._CANONICAL.fullmatch(value)
        return int(value) if written else None


class Boolean(Strict):
    """JSON's true or false."""

    json_schema: Mapping[str, Any] = MappingProxyType({"type": "boolean"})

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> bool:
        if value is not True and value is not False:
            raise ValidationError("Send true or false.")
        return value


class QueryBoolean(Strict):
    """`true` or `false` in a query string."""

    json_schema: Mapping[str, Any] = MappingProxyType({"type": "boolean"})

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> bool:
        if value not in ("true", "false"):
            raise ValidationError("Write true or false.")
        return bool(value == "true")


class Choice(Strict):
    """One of the values of a string enumeration."""

    def __init__(self, choices: type[enum.StrEnum], **options: Any) -> None:
        super().__init__(**options)
        self.choices = choices
        self._by_text = {str(choice): choice for choice in choices}
        self.json_schema = {"type": "string", "enum": [str(choice) for choice in choices]}

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> enum.StrEnum:
        found = self._by_text.get(value) if type(value) is str else None
        if found is not None:
            return found
        raise ValidationError(f"Send one of: {', '.join(self.choices)}.")


class Id(Strict):
    """An id with this prefix, as a UUID, in a body or a query string."""

    def __init__(self, prefix: str, **options: Any) -> None:
        options.setdefault("example", f"{prefix}_0192f0c1a2b37c4d8e5f60718293a4b5")
        super().__init__(**options)
        self.prefix = prefix
        self.json_schema = ids.json_schema(prefix)

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> UUID:
        found = ids.parse(self.prefix, _text(value))
        if found is None:
            raise ValidationError(f"This is no id: send {self.prefix}_ and 32 digits of 0-9, a-f.")
        return found

    def _serialize(self, value: UUID | None, *_: Any, **__: Any) -> str | None:
        return None if value is None else ids.text(self.prefix, value)


class Time(Strict):
    """RFC 3339 with its offset, as an aware moment in UTC.

    No leap second, and within the years 1 to 9999 in UTC too. Of nine decimals the last three are
    cut off, as PostgreSQL keeps microseconds: a moment never becomes a later one.
    """

    json_schema: Mapping[str, Any] = MappingProxyType({"type": "string", "format": "date-time"})

    def __init__(self, **options: Any) -> None:
        options.setdefault("example", "2026-01-31T12:00:00.000000Z")
        super().__init__(**options)

    _FORM = re.compile(
        r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6})?)((?<=\.\d{6})\d{1,3})?"
        r"([Zz]|[+-]\d\d:\d\d)",
        re.ASCII,
    )

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> datetime:
        text = _text(value)
        try:
            match = self._FORM.fullmatch(text)
            if match is None:
                raise ValueError(text)
            return datetime.fromisoformat((match[1] + match[3]).upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            raise ValidationError(
                "Send an RFC 3339 time with its offset, such as 2026-01-31T12:00:00Z "
                "(at most 9 decimals; in a URL write + as %2B)."
            ) from None

    def _serialize(self, value: datetime | None, *_: Any, **__: Any) -> str | None:
        return None if value is None else rfc3339(value)


def json_text(value: object) -> str | None:
    """Return JSON as the canonical text (RFC 8785) that a column stores; None for no value.

    Text and not `jsonb`, which rewrites numbers and refuses U+0000.
    """
    return None if value is None else canonical_json.dumps(value).decode()


class JsonValue(Strict):
    """Any JSON (the body's reader has checked it); at most `max_bytes` in canonical form.

    In an answer it is read from the text in the column `stored_in`.
    """

    def __init__(self, max_bytes: int, *, stored_in: str | None = None, **options: Any) -> None:
        super().__init__(attribute=stored_in, **options)
        self.max_bytes = max_bytes

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> canonical_json.JSON:
        # C writes JSON in a tenth of the time, and strings at least as long; canonical JSON has up
        # to 21 digits where it has 1e+20.
        if 5 * len(json.dumps(value)) <= self.max_bytes:
            return value  # type: ignore[no-any-return]
        size = len(canonical_json.dumps(value))
        if size > self.max_bytes:
            raise ValidationError(f"At most {self.max_bytes} bytes of JSON; this has {size}.")
        return value  # type: ignore[no-any-return]

    def _serialize(self, value: str | None, *_: Any, **__: Any) -> Any:
        return None if value is None else json.loads(value)


class JsonObject(JsonValue):
    """Any JSON object; at most `max_bytes` in canonical form."""

    json_schema: Mapping[str, Any] = MappingProxyType({"type": "object"})

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> canonical_json.JSON:
        if not isinstance(value, dict):
            raise ValidationError("Send a JSON object.")
        return super()._deserialize(value, *arguments, **options)


class Object(Described, fields.Nested):
    """An object with a schema of its own."""

    default_error_messages = {"type": "Send a JSON object."}  # noqa: RUF012  # as above

    def reader(self) -> Callable[[Any], Any]:
        """Return its schema's."""
        schema: Any = self.schema
        read: Callable[[Any], Any] = schema.load_good
        return read


class Items(Described, fields.List[Any]):
    """An array of `min_items` to `max_items` of one type."""

    default_error_messages = {"invalid": "Send an array."}  # noqa: RUF012  # as above

    def __init__(
        self, item: fields.Field[Any], *, max_items: int, min_items: int = 0, **options: Any
    ) -> None:
        super().__init__(item, **options)
        self.min_items = min_items
        self.max_items = max_items

    def reader(self) -> Callable[[Any], Any]:
        """Return what reads each item by the item's."""
        read = self.item_reader()

        def read_all(value: Any) -> list[Any]:
            if type(value) is not list or not self.min_items <= len(value) <= self.max_items:
                raise REFUSED
            return [read(item) for item in value]

        return self.deserialize if self.validators else read_all

    def item_reader(self) -> Callable[[Any], Any]:
        """Return what reads an item."""
        if self.inner.allow_none or not isinstance(self.inner, Described):
            return self.inner.deserialize
        read = self.inner.reader()

        def read_item(value: Any) -> Any:
            if value is None:
                raise REFUSED
            return read(value)

        return read_item

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> list[Any]:
        # Counted first: a million items are refused without reading one.
        if isinstance(value, list) and not self.min_items <= len(value) <= self.max_items:
            raise ValidationError(
                f"Send {self.min_items} to {self.max_items} items; this has {len(value)}."
            )
        if not isinstance(value, list):
            raise self.make_error("invalid")
        loaded: list[Any] = []
        wrong: dict[int, Any] = {}
        left = MOST_ERRORS
        for place, item in enumerate(value):
            try:
                loaded.append(self.inner.deserialize(item, **options))
            except ValidationError as error:
                wrong[place] = error.messages
                left -= _count(error.messages)
                if left <= 0:
                    break
        if wrong:
            raise ValidationError(wrong, valid_data=loaded)
        return loaded


def _count(messages: Any) -> int:
    """Return how many texts marshmallow's tree of messages holds."""
    if isinstance(messages, Mapping):
        return sum(map(_count, messages.values()))
    return len(messages) if isinstance(messages, list) else 1


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValidationError("Send a string.")
    return value
