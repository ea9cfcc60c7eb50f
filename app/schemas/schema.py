"""The base schemas: strict objects of requests, and objects of responses."""

from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import cache, cached_property
from itertools import islice
from typing import Any, ClassVar

import marshmallow
from marshmallow import fields as plain
from marshmallow.decorators import POST_LOAD, VALIDATES_SCHEMA

from app.schemas.fields import MOST_ERRORS, REFUSED, Described, Items, Strict

# In the place of a default: the field must be there.
_REQUIRED = object()


class Schema(marshmallow.Schema):
    """An object of known fields; any other is refused."""

    error_messages = {  # noqa: RUF012  # marshmallow's own spelling
        "unknown": "Unknown field.",
        "type": "Send a JSON object.",
    }

    class Meta:
        """marshmallow's options."""

        unknown = marshmallow.RAISE

    def load(self, data: Any, **options: Any) -> Any:
        """Load an object: a good one by `load_good`, any other as marshmallow tells its faults.

        Without most unknown names, if there are very many: it will be refused.
        """
        if not any(options.values()):
            try:
                return self.load_good(data)
            except marshmallow.ValidationError:
                # Read again: this one tells the first fault alone.
                pass
        if type(data) is dict and len(data) > len(self.load_fields) + MOST_ERRORS:
            known = {field.data_key or name for name, field in self.load_fields.items()}
            kept = {*known, *islice((name for name in data if name not in known), MOST_ERRORS)}
            data = {name: value for name, value in data.items() if name in kept}
        return super().load(data, **options)

    def load_good(self, data: Any) -> Any:
        """Load a good object as `marshmallow.Schema.load` does, for a sixth of its time.

        Raises `ValidationError` for any other, which need not say why. The fields are the same, and
        the same functions convert and check.
        """
        if type(data) is not dict:
            raise REFUSED
        loaded: dict[str, Any] = {}
        count = 0
        for name, key, read, may_be_null, default in self._readers:
            if name in data:
                count += 1
                value = data[name]
                if value is not None:
                    loaded[key] = read(value)
                elif may_be_null:
                    loaded[key] = None
                else:
                    raise REFUSED
            elif default is _REQUIRED:
                raise REFUSED
            elif default is not marshmallow.missing:
                loaded[key] = default() if callable(default) else default
        if count != len(data):
            raise REFUSED
        self.check(data)
        for check in self._checks:
            check(loaded)
        for finish in self._finishes:
            loaded = finish(loaded)
        return loaded

    @cached_property
    def _readers(self) -> list[tuple[str, str, Callable[[Any], Any], bool, Any]]:
        """Of each field: name in JSON, key, what reads it, whether null passes, default."""
        return [
            (
                name if field.data_key is None else field.data_key,
                field.attribute or name,
                field.reader() if isinstance(field, Described) else field.deserialize,
                field.allow_none,
                _REQUIRED if field.required else field.load_default,
            )
            for name, field in self.load_fields.items()
        ]

    @cached_property
    def _checks(self) -> list[Callable[[Any], Any]]:
        names = [each[0] for each in self._hooks[VALIDATES_SCHEMA]]
        return [getattr(self, name) for name in names if name != "_check"]

    @cached_property
    def _finishes(self) -> list[Callable[[Any], Any]]:
        return [getattr(self, name) for name, *_ in self._hooks[POST_LOAD]]

    def check(self, sent: Mapping[str, Any]) -> None:
        """Check the fields of an object, as sent, against each other; raises `ValidationError`.

        Schemas with such rules override it; each field has its own checks besides.
        """

    @marshmallow.validates_schema(pass_original=True, skip_on_field_errors=False)
    def _check(self, _loaded: object, sent: Any, **_: Any) -> None:
        if isinstance(sent, dict):
            self.check(sent)


class AnswerSchema(Schema):
    """An object in a response: all of its fields are always present, except the `optional`."""

    optional: ClassVar[Collection[str]] = ()

    def on_bind_field(self, field_name: str, field_obj: marshmallow.fields.Field[Any]) -> None:
        """Require the field, as marshmallow binds it to this schema."""
        field_obj.required = field_name not in self.optional

    @classmethod
    def field(cls, name: str, *, description: str | None = None, **options: Any) -> Any:
        """Return a field as a request has it, with other options such as `required`."""
        found = copy(cls._declared_fields[name])
        vars(found).update({"attribute": None, **options})
        if description is not None:
            found.metadata = {**found.metadata, "description": description}
        return found

    @classmethod
    def of(cls, source: object, **given: Any) -> dict[str, Any]:
        """Return the JSON representation of `source`: its attributes by the names of the fields.

        `given` are members that it has no attribute for, as JSON.
        """
        # What marshmallow's dump does, for a fifth of its time: a hot route answers so.
        shown = {}
        for field in _without(cls, frozenset(given)).dump_fields.values():
            name = str(field.name)
            value = _value(source, field.attribute or name)
            if value is not marshmallow.missing:
                shown[field.data_key or name] = field._serialize(value, name, source)  # noqa: SLF001
        return {**shown, **given}

    @classmethod
    def json_schema(cls, **closer: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON Schema of the object without what is optional.

        `closer` are members that hold less than usual.
        """
        made = _without(cls, frozenset())
        described = {
            name: field.described()
            for name, field in made.fields.items()
            if isinstance(field, Strict) and name not in cls.optional
        }
        return object_schema({**described, **closer})


class ItemsApart(Items):
    """An array whose items stand for themselves: a wrong one is loaded as its `ValidationError`."""

    def item_reader(self) -> Callable[[Any], Any]:
        """Return what reads an item, or its error."""
        return self._item

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> list[Any]:
        if not isinstance(value, list) or not self.min_items <= len(value) <= self.max_items:
            return super()._deserialize(value, *arguments, **options)
        return [self._item(item, **options) for item in value]

    def _item(self, item: Any, **options: Any) -> Any:
        try:
            return self.inner.deserialize(item, **options)
        except marshmallow.ValidationError as error:
            return error


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object that has at least these members."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
    }


def _value(source: Any, name: str) -> Any:
    if isinstance(source, Mapping):
        return source.get(name, marshmallow.missing)
    return getattr(source, name, marshmallow.missing)


@cache
def _without(schema: type[AnswerSchema], names: frozenset[str]) -> AnswerSchema:
    return schema(exclude=names)


class ProblemSchema(marshmallow.Schema):
    """Problem details (RFC 9457)."""

    class Meta:
        """Allow extension members (RFC 9457 section 3.2)."""

        unknown = marshmallow.INCLUDE

    type = plain.Url(
        required=True,
        metadata={"description": "URL of the page that explains this kind of error."},
    )
    title = plain.String(required=True)
    status = plain.Integer(required=True)
    detail = plain.String(required=True)
    request_id = plain.String(required=True)
    errors = plain.List(
        plain.Nested(
            marshmallow.Schema.from_dict(
                {
                    "pointer": plain.String(required=True),
                    "detail": plain.String(required=True),
                    "line": plain.Integer(metadata={"description": "Of an expression, from 1."}),
                    "column": plain.Integer(metadata={"description": "In that line, from 1."}),
                },
                name="FieldErrorSchema",
            )
        ),
        metadata={"description": "The fields that were refused (422)."},
    )
