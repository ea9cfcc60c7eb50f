"""A good object is loaded by `Schema.load_good`, as marshmallow would have loaded it.

Each schema of a request is tried with an object it takes, and with that object changed in one place
in every way that the pool has.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import marshmallow
import pytest
from marshmallow import ValidationError
from marshmallow.decorators import PRE_LOAD, VALIDATES

import app.web  # noqa: F401  # every schema is declared once this is loaded
from app.schemas.schema import AnswerSchema, Schema

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
POOL: list[Any] = [
    *(None, True, False, 0, 1, 5, 200, 2.0, 1.5, -1, "", "a", "a\0b", "a:b", "x" * 300),
    *("true", "30", "2026-01-31T12:00:00Z", "2026-01-31T13:00:00.123456789+01:00", "é@example.com"),
    *("https://example.com/hook", "dana@example.com", TRACE, TRACE[:16], "0" * 64, "AAAA"),
    *([], {}, ["a"], ["a", "a"], [None], [{}], [1, "a"], {"a": 1}, {"a": "b"}, {"a:b": "c"}),
]

# What a query string can say.
TEXTS = [each for each in POOL if isinstance(each, str) or each == ["a"] or each == ["a", "a"]]


def requests() -> list[type[Schema]]:
    """Return the schemas of requests, by their names."""
    found, todo = {Schema}, [Schema]
    while todo:
        for kind in todo.pop().__subclasses__():
            if kind not in found and not issubclass(kind, AnswerSchema):
                found.add(kind)
                todo.append(kind)
    named = [kind for kind in found if kind.__module__.startswith("app.")]
    return sorted(named, key=lambda kind: (kind.__module__, kind.__name__))


def values(field: Any) -> Iterator[Any]:
    """Yield what a field may take or refuse."""
    yield from (field.metadata[name] for name in ("example", "default") if name in field.metadata)
    yield from getattr(field, "json_schema", {}).get("enum", ())
    inner = getattr(field, "inner", None)
    if inner is not None:
        yield from ([value] for value in values(inner) if not isinstance(value, list))
    if hasattr(field, "nested"):
        yield example(field.schema)
    yield from TEXTS if type(field.root).__name__.endswith("Args") else POOL


def passes(field: Any, value: Any) -> bool:
    try:
        field.deserialize(value)
    except ValidationError:
        return False
    return True


def example(schema: Schema) -> dict[str, Any]:
    """Return an object with every field, each of which its own field takes."""
    found: dict[str, Any] = {}
    for name, field in schema.load_fields.items():
        good = [value for value in values(field) if value is not None and passes(field, value)]
        assert good or not field.required, f"{type(schema).__name__}.{name}: the pool has nothing"
        found.update([(field.data_key or name, value) for value in good[:1]])
    return found


def changed(schema: Schema, good: dict[str, Any]) -> Iterator[Any]:
    yield good
    yield {**good, "no such field": 1}
    yield {f"no such field {place}": 1 for place in range(500)}
    yield from (None, [], "text", [good])
    for name, field in schema.load_fields.items():
        sent_as = field.data_key or name
        yield {key: value for key, value in good.items() if key != sent_as}
        yield from ({**good, sent_as: value} for value in values(field))


def outcome(load: Any, sent: Any) -> tuple[str, Any]:
    try:
        loaded = load(deepcopy(sent))
    except ValidationError as error:
        return "refused", error.messages
    return "loaded", [(key, repr(value)) for key, value in loaded.items()]


@pytest.mark.parametrize("kind", requests(), ids=lambda kind: kind.__name__)
def test_an_object_is_loaded_as_marshmallow_loads_it(kind: type[Schema]) -> None:
    schema = kind()
    assert not schema._hooks[PRE_LOAD], "load_good calls none"
    assert not schema._hooks[VALIDATES], "load_good calls none"
    for sent in changed(schema, example(schema)):
        by_marshmallow = outcome(lambda sent: marshmallow.Schema.load(schema, sent), sent)
        if isinstance(sent, dict) and len(sent) == 500:
            assert outcome(schema.load, sent)[0] == by_marshmallow[0] == "refused"
        else:
            assert outcome(schema.load, sent) == by_marshmallow, sent
        good = outcome(schema.load_good, sent)
        assert good == by_marshmallow or (good[0] == by_marshmallow[0] == "refused"), sent
