"""Writes the client's verbs and types from the service's OpenAPI document.

`python -m dev.client_types` after a change of a route or schema; a test compares.
"""

import json
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.lib.crypto.sealing import MasterKeys
from app.settings import Settings
from app.web import create_app
from dev.stack import ROOT

Json = dict[str, Any]
PACKAGE = ROOT / "client" / "record_service"

# Pages for people, the operator's routes, and OTLP, which has exporters of its own.
_NOT_VERBS = frozenset({"shared_page", "site", "system", "unsubscribe"})
_METHODS = ("get", "post", "put", "patch", "delete")
_SCALARS = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_MADE = '"""{words}\n\nMade by `python -m dev.client_types`.\n"""\n'


def document() -> Json:
    """Return the OpenAPI document of a service without servers."""
    required = {
        "DATABASE_URL": "postgresql://user:password@localhost/records",
        "MASTER_KEYS": MasterKeys.generate(),
        "BASE_URL": "https://records.example.com",
        "LOG_LEVEL": "CRITICAL",
    }
    app = create_app(Settings.from_environ(required))
    found: Json = app.test_client().get("/openapi.json").get_json()
    return found


@dataclass(frozen=True)
class Verb:
    """An operation as a method; `takes` names the TypedDict of its keywords."""

    name: str
    method: str
    path: str
    answer: str
    returns: str
    summary: str
    takes: str | None
    has_body: bool
    query: Sequence[str]
    repeatable: bool

    @property
    def entry(self) -> str:
        """Its line in the table of operations."""
        more = ", body=True" if self.has_body else ""
        names = "".join(f"{_quoted(each)}, " for each in self.query)
        more += f", query=({names.strip()})" if self.has_body and self.query else ""
        words = ", ".join(map(_quoted, (self.method, self.path, self.answer, self.summary)))
        return f"        {_quoted(self.name)}: Operation({words}{more}),"

    def stub(self, *, waits: bool) -> str:
        """Its declaration; `waits` for the client that is awaited."""
        ids = [f"{each}: str" for each in re.findall(r"\{(\w+)\}", self.path)]
        options = ["page_size: int = ..."] if self.answer == "rows" else []
        options += ["timeout: float | None = ..."]
        options += ["idempotency_key: str | None = ..."] if self.repeatable else []
        given = [f"**given: Unpack[schemas.{self.takes}]"] if self.takes else []
        words = ", ".join(["self", *ids, *(["/"] if ids else []), "*", *options, *given])
        kind, returns = "def", self.returns
        if self.answer == "rows":
            returns = f"{'AsyncIterator' if waits else 'Iterator'}[{returns}]"
        elif waits:
            kind = "async def"
        return f"    {kind} {self.name}({words}) -> {returns}: ..."


class Types:
    """The document's schemas as Python types."""

    def __init__(self, found: Json) -> None:
        self._schemas: dict[str, Json] = found["components"]["schemas"]
        self._answered = self._reached(
            each["schema"]
            for operation in _operations(found)
            for answer in operation["responses"].values()
            for each in answer.get("content", {}).values()
        )
        self._literals = self._named_literals(found)
        self._written: dict[str, str] = {}

    def source(self) -> str:
        """Return the module of all types that were asked for, and what these refer to."""
        words = _MADE.format(words="The shapes of what the service takes and answers, as types.")
        literals = [
            f"{name} = Literal[{', '.join(map(_quoted, values))}]"
            for values, name in sorted(self._literals.items(), key=lambda each: each[1])
            if any(re.search(rf"\b{name}\b", text) for text in self._written.values())
        ]
        classes = [self._written[name] for name in sorted(self._written)]
        return "\n".join([words, _SCHEMAS_HEAD, *literals, "", "", "\n\n\n".join(classes), ""])

    def keywords(self, name: str, parameters: Sequence[Json], body: str | None) -> str | None:
        """Return the name of the TypedDict of a verb's keywords, if it has any."""
        if not parameters:
            return None if body is None else self.named(body)
        schema: Json = {
            "properties": {each["name"]: each["schema"] for each in parameters},
            "required": [each["name"] for each in parameters if each.get("required")],
        }
        if body is not None:
            base = self._schemas[body]
            schema = {
                "properties": base["properties"] | schema["properties"],
                "required": base.get("required", []) + schema["required"],
            }
        self._write(name, schema, answered=False)
        return name

    def named(self, name: str) -> str:
        """Return a schema's name, and write it."""
        if name not in self._written:
            self._written[name] = ""
            self._write(name, self._schemas[name], answered=name in self._answered)
        return name

    def expression(self, schema: Json, prefix: str = "", *, answered: bool = True) -> str:
        """Return the type of a schema."""
        if "$ref" in schema:
            return prefix + self.named(schema["$ref"].rpartition("/")[2])
        for union in ("anyOf", "oneOf"):
            if union in schema:
                parts = [self.expression(each, prefix, answered=answered) for each in schema[union]]
                return " | ".join(sorted(parts, key=lambda part: part == "None"))
        if "enum" in schema:
            return self._literal(schema["enum"])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            parts = [self.expression({**schema, "type": kind}, answered=answered) for kind in kinds]
            return " | ".join(sorted(parts, key=lambda part: part == "None"))
        if kinds == "array":
            inner = self.expression(schema.get("items", {}), prefix, answered=answered)
            return f"list[{inner}]" if answered else f"Sequence[{inner}]"
        if kinds == "object":
            values = schema.get("additionalProperties") or {}
            inner = self.expression(values, answered=answered) if values else "Any"
            return f"dict[str, {inner}]" if answered else f"Mapping[str, {inner}]"
        if kinds == "string" and schema.get("format") == "date-time" and not answered:
            return "Time"
        return _SCALARS.get(kinds or "", "Any")

    def page_of(self, name: str) -> Json | None:
        """Return the schema of a page's items, if it is a page of a list."""
        fields = self._schemas[name].get("properties", {})
        return fields["data"]["items"] if {"data", "next_cursor"} <= fields.keys() else None

    def _write(self, name: str, schema: Json, *, answered: bool) -> None:
        required = set(schema.get("required", ()))
        lines = []
        for field, shape in schema.get("properties", {}).items():
            kind = self.expression(shape, answered=answered)
            lines.append(f"    {field}: {kind if field in required else f'NotRequired[{kind}]'}")
        self._written[name] = "\n".join([f"class {name}(TypedDict):", *(lines or ["    pass"])])

    def _literal(self, values: Sequence[Any]) -> str:
        texts = tuple(each for each in values if each is not None)
        name = self._literals.get(tuple(sorted(texts)))
        kind = name or f"Literal[{', '.join(map(_quoted, texts))}]"
        return kind if len(texts) == len(values) else f"{kind} | None"

    def _reached(self, shapes: Iterator[Json]) -> set[str]:
        found: set[str] = set()
        todo = list(_references(list(shapes)))
        while todo:
            name = todo.pop()
            if name not in found:
                found.add(name)
                todo += _references(self._schemas[name])
        return found

    def _named_literals(self, found: Json) -> dict[tuple[str, ...], str]:
        """Name each closed set of texts that has several uses, after the field that has it.

        Several sets of one field are told apart by the schema whose field it is.
        """
        uses: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
        for name, field, shape in _fields(found, self._schemas):
            values = shape.get("items", shape).get("enum", ())
            texts = tuple(sorted(each for each in values if isinstance(each, str)))
            if texts:
                uses[texts].append((field, name))
        sets_of = defaultdict(set)
        for texts, where in uses.items():
            for field, _ in where:
                sets_of[field].add(texts)
        named = {}
        for texts, where in uses.items():
            if len(where) > 1:
                fields = [field for field, _ in where]
                field = max(dict.fromkeys(fields), key=fields.count)
                owners = sorted(
                    (name for _, name in where if name), key=lambda one: (len(one), one)
                )
                owner = owners[0] if owners and len(sets_of[field]) > 1 else ""
                chosen = owner + _camel(field)
                named[texts] = f"{chosen}Name" if chosen in self._schemas else chosen
        return named


def verbs(found: Json, types: Types) -> dict[str, list[Verb]]:
    """Return the verbs by their resource."""
    made: dict[str, list[Verb]] = defaultdict(list)
    for operation in _operations(found):
        resource, _, name = operation.get("operationId", "").partition(".")
        given = [each for each in operation["parameters"] if each["in"] == "query"]
        left_out = {"share_token"}
        if {"limit", "cursor"} <= {each["name"] for each in given}:
            left_out |= {"limit", "cursor"}
        given = [each for each in given if each["name"] not in left_out]
        sent = operation.get("requestBody", {}).get("content", {})
        body = sent.get("application/json", {}).get("schema", {}).get("$ref")
        if (
            not name
            or resource in _NOT_VERBS
            or (sent and body is None)
            or any(keyword.iskeyword(each["name"]) for each in given)
        ):
            continue
        takes_name = f"{_camel(resource)}{_camel(name)}Query"
        body = body and body.rpartition("/")[2]
        answer, returns = _answer(operation, types)
        made[resource].append(
            Verb(
                name,
                operation["method"].upper(),
                operation["path"],
                answer,
                returns,
                operation["summary"],
                types.keywords(takes_name, given, body),
                body is not None,
                [each["name"] for each in given],
                any(each["name"] == "Idempotency-Key" for each in operation["parameters"]),
            )
        )
    return made


def _answer(operation: Json, types: Types) -> tuple[str, str]:
    """Return how a verb's good answers are read, and their type."""
    good = {code: each for code, each in operation["responses"].items() if code[0] == "2"}
    content = [each for answer in good.values() for each in answer.get("content", {}).items()]
    if not content:
        return "none", "None"
    # Parts of it may be asked for: so its exact bytes count.
    if "206" in good or any(media.startswith("application/oct") for media, _ in content):
        return "bytes", "bytes"
    shapes = [each["schema"] for media, each in content if media == "application/json"]
    if not shapes:
        return "text", "str"
    names = list(dict.fromkeys(each.get("$ref", "").rpartition("/")[2] for each in shapes))
    page = types.page_of(names[0]) if names[0] else None
    if page is not None:
        return "rows", types.expression(page, "schemas.")
    kinds = (types.expression(each, "schemas.") for each in shapes)
    return "json", " | ".join(dict.fromkeys(kinds))


def files(found: Json) -> dict[str, str]:
    """Return the source of each file by its name."""
    types = Types(found)
    made = verbs(found, types)
    table = [_MADE.format(words="The service's operations, by resource and verb."), _TABLE_HEAD]
    stub = [_STUB_HEAD]
    names = {False: [], True: []}  # type: dict[bool, list[str]]
    for resource in sorted(made):
        table += [
            f"    {_quoted(resource)}: {{",
            *(verb.entry for verb in made[resource]),
            "    },",
        ]
        for waits in (False, True):
            kind = f"{'Async' if waits else ''}{_camel(resource)}"
            names[waits].append(f"    {resource}: {kind}")
            stub += [f"class {kind}:", *(verb.stub(waits=waits) for verb in made[resource]), ""]
    for waits, kind in ((False, "Verbs"), (True, "AsyncVerbs")):
        add = "    def _add_verbs(self, perform: Callable[..., Any]) -> None: ..."
        stub += [f"class {kind}:", *names[waits], add, ""]
    return {
        "schemas.py": types.source(),
        "operations.py": "\n".join([*table, "}", ""]),
        "verbs.pyi": "\n".join(stub),
    }


def _operations(found: Json) -> Iterator[Json]:
    for path, methods in found["paths"].items():
        shared = methods.get("parameters", [])
        for method in _METHODS:
            if method in methods:
                operation = {**methods[method], "path": path, "method": method}
                operation["parameters"] = [*shared, *operation.get("parameters", [])]
                told = operation["responses"].items()
                operation["responses"] = {code: each for code, each in told if "$ref" not in each}
                yield operation


def _fields(found: Json, schemas: Mapping[str, Json]) -> Iterator[tuple[str, str, Json]]:
    """Yield every field of a schema, then every parameter: whose it is, its name and shape."""
    for name, schema in schemas.items():
        for field, shape in schema.get("properties", {}).items():
            yield name, field, shape
    for operation in _operations(found):
        for each in operation["parameters"]:
            yield "", each["name"], each["schema"]


def _references(shape: Any) -> Iterator[str]:
    if isinstance(shape, dict):
        if "$ref" in shape:
            yield shape["$ref"].rpartition("/")[2]
        for each in shape.values():
            yield from _references(each)
    elif isinstance(shape, list):
        for each in shape:
            yield from _references(each)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


_SCHEMAS_HEAD = """\
from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import NotRequired
elif sys.version_info >= (3, 11):
    from typing import NotRequired

# A moment: RFC 3339, or a datetime with its offset.
Time = Union[str, datetime]
"""
_TABLE_HEAD = """\
from __future__ import annotations

from typing import NamedTuple


class Operation(NamedTuple):
    \"\"\"A route: its method and path, how its answer is read, what it does.

    `answer` is json, rows, bytes, text or none. Where there is a `body`, `query` names what goes
    into the query.
    \"\"\"

    method: str
    path: str
    answer: str
    summary: str
    body: bool = False
    query: tuple[str, ...] = ()


OPERATIONS: dict[str, dict[str, Operation]] = {"""
_STUB_HEAD = """\
# The verbs of each resource, as types. Made by `python -m dev.client_types`.

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from typing_extensions import Unpack

from record_service import schemas
"""


def main() -> None:
    """Write the files."""
    for name, text in files(document()).items():
        (PACKAGE / name).write_text(text)


if __name__ == "__main__":
    main()
