"""The reference of the API: the OpenAPI document as the page `/docs` shows it."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

_METHODS = ("get", "post", "put", "patch", "delete")
_DEPTH = 4
_LIMITS = (
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minimum", "at least {}"),
    ("maximum", "at most {}"),
    ("maxItems", "at most {} items"),
    ("pattern", "matches {}"),
)
# That a text is not empty, and has no NUL, goes without saying.
_UNTOLD = (1, "^[^\\u0000]*$")
_MEDIA = "application/json"


@dataclass(frozen=True)
class Row:
    """A parameter, or a member of a body, named by its path in it."""

    name: str
    type: str
    text: str
    required: bool
    where: str = ""


@dataclass(frozen=True)
class Operation:
    """One operation; `text` in lower case is what a search looks into."""

    id: str
    method: str
    path: str
    summary: str
    description: str
    is_public: bool
    parameters: Sequence[Row]
    body: Sequence[Row]
    answers: Sequence[tuple[str, str, Sequence[Row]]]
    curl: str
    text: str


@dataclass
class Group:
    """The operations of one tag."""

    name: str
    description: str
    operations: list[Operation] = field(default_factory=list)


@cache
def read(document: bytes) -> Sequence[Group]:
    """Return the operations of an OpenAPI document by their tags, in the document's order."""
    spec = json.loads(document)
    told = {tag["name"]: tag.get("description", "") for tag in spec.get("tags", ())}
    groups = {name: Group(name, text) for name, text in told.items()}
    for path, item in spec["paths"].items():
        for method in _METHODS:
            if method in item:
                tag = item[method].get("tags", ["others"])[0]
                group = groups.setdefault(tag, Group(tag, ""))
                group.operations.append(_operation(spec, path, method, item, group))
    return [group for group in groups.values() if group.operations]


def matching(groups: Sequence[Group], words: str) -> Sequence[Group]:
    """Return the operations that have all these words."""
    wanted = words.lower().split()
    found = [
        Group(
            group.name,
            group.description,
            [each for each in group.operations if all(word in each.text for word in wanted)],
        )
        for group in groups
    ]
    return [group for group in found if group.operations]


def _operation(
    spec: Mapping[str, Any], path: str, method: str, item: Mapping[str, Any], group: Group
) -> Operation:
    told = item[method]
    parameters = [
        _resolved(spec, each) for each in (*item.get("parameters", ()), *told.get("parameters", ()))
    ]
    media = _resolved(spec, told.get("requestBody", {})).get("content", {})
    kind = _MEDIA if _MEDIA in media else next(iter(media), "")
    schema = media.get(kind, {}).get("schema", {})
    answers = [
        (
            status,
            answer.get("description", ""),
            _rows(spec, _content(answer)) if status < "3" else (),
        )
        for status, answer in (
            (str(status), _resolved(spec, answer)) for status, answer in told["responses"].items()
        )
    ]
    is_public = told.get("security") == []
    summary, description = told.get("summary", ""), told.get("description", "")
    return Operation(
        id=f"{method}{path}".replace("/", "-").replace("{", "").replace("}", ""),
        method=method.upper(),
        path=path,
        summary=summary,
        description=description,
        is_public=is_public,
        parameters=[
            Row(
                each["name"],
                _type(spec, each.get("schema", {})),
                each.get("description", ""),
                each.get("required", False),
                each["in"],
            )
            for each in parameters
        ],
        body=_rows(spec, schema),
        answers=answers,
        curl=_curl(spec, f"{spec['servers'][0]['url']}{path}", method, kind, schema, is_public),
        text=f"{method} {path} {summary} {description} {group.name}".lower(),
    )


def _curl(
    spec: Mapping[str, Any],
    url: str,
    method: str,
    kind: str,
    schema: Mapping[str, Any],
    is_public: bool,
) -> str:
    """Return a command that calls the operation; the key is in the shell's environment."""
    verb = "" if method == "get" else f" -X {method.upper()}"
    lines = [f"curl{verb} {shlex.quote(url)}"]
    if not is_public:
        lines.append('-H "Authorization: Bearer $SERVICE_API_KEY"')
    if kind:
        lines.append(f"-H {shlex.quote(f'Content-Type: {kind}')}")
        body = _example(spec, schema, _DEPTH) if kind == _MEDIA else "…"
        lines.append(f"--data {shlex.quote(json.dumps(body, ensure_ascii=False))}")
    return " \\\n  ".join(lines)


def _resolved(spec: Mapping[str, Any], told: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in told:
        found: Any = spec
        for part in told["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        told = found
    return told


def _content(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = answer.get("content", {}).get(_MEDIA, {}).get("schema", {})
    return schema


def _variants(spec: Mapping[str, Any], schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a schema may be, but null."""
    schema = _resolved(spec, schema)
    each = schema.get("oneOf") or schema.get("anyOf") or schema.get("allOf") or [schema]
    return [
        found
        for one in each
        if (found := _resolved(spec, one)).get("type") != "null" or len(each) == 1
    ]


def _rows(
    spec: Mapping[str, Any], schema: Mapping[str, Any], within: str = "", depth: int = _DEPTH
) -> list[Row]:
    return list(_members(spec, schema, within, depth)) if schema and depth else []


def _members(
    spec: Mapping[str, Any], schema: Mapping[str, Any], within: str, depth: int
) -> Iterator[Row]:
    for variant in _variants(spec, schema):
        if "items" in variant:
            yield from _rows(spec, variant["items"], f"{within}[]", depth)
        required = variant.get("required", ())
        for name, told in variant.get("properties", {}).items():
            place = f"{within}.{name}" if within else name
            text = told.get("description") or _resolved(spec, told).get("description", "")
            yield Row(place, _type(spec, told), text, name in required)
            yield from _rows(spec, told, place, depth - 1)


def _type(spec: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Write what a value may be: `string, at most 200 characters, or null`."""
    words = []
    for variant in _variants(spec, schema):
        kinds = variant.get("type", "any")
        named = [kinds] if isinstance(kinds, str) else list(kinds)
        text = " | ".join(kind for kind in named if kind != "null")
        if "enum" in variant:
            text = " | ".join(json.dumps(each) for each in variant["enum"] if each is not None)
        if "items" in variant:
            text = f"array of {_type(spec, variant['items'])}"
        told = [variant["format"]] if "format" in variant else []
        told += [
            limit.format(variant[name])
            for name, limit in _LIMITS
            if variant.get(name) not in (None, *_UNTOLD)
        ]
        words.append(", ".join((text, *told)))
    if _is_nullable(_resolved(spec, schema)):
        words.append("null")
    return " or ".join(dict.fromkeys(words))


def _is_nullable(schema: Mapping[str, Any]) -> bool:
    either = (*schema.get("oneOf", ()), *schema.get("anyOf", ()))
    return "null" in (schema.get("type") or ()) or {"type": "null"} in either


def _example(spec: Mapping[str, Any], schema: Mapping[str, Any], depth: int) -> Any:
    """Return a value as the schema's examples have it: of an object, what it requires."""
    found = {**(_variants(spec, schema) or [{}])[0], **schema}
    for name in ("example", "default", "const"):
        if name in found:
            return found[name]
    if found.get("examples"):
        return found["examples"][0]
    if "enum" in found:
        return found["enum"][0]
    if "properties" in found:
        wanted = found.get("required") or list(found["properties"])[:1]
        inside = found["properties"]
        return {name: _example(spec, inside[name], depth - 1) for name in wanted if depth}
    if "items" in found:
        return [_example(spec, found["items"], depth - 1)] if depth else []
    return {"integer": 1, "number": 1, "boolean": True, "object": {}}.get(
        found.get("type", ""), "…"
    )
