"""The reference of the API: the OpenAPI document as the page `/docs` shows it."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

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

Schema = Mapping[str, Any]


class Row(NamedTuple):
    """A parameter, or a member of a body, named by its path in it."""

    name: str
    type: str
    text: str
    required: bool
    where: str = ""


class Operation(NamedTuple):
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


class Group(NamedTuple):
    """The operations of one tag."""

    name: str
    description: str
    operations: Sequence[Operation]


@cache
def read(document: bytes) -> Sequence[Group]:
    """Return the operations of an OpenAPI document by their tags, in the document's order."""
    spec = json.loads(document)
    _put_in_place(spec)
    told = {tag["name"]: tag.get("description", "") for tag in spec["tags"]}
    by_tag: dict[str, list[Operation]] = {name: [] for name in told}
    for path, item in spec["paths"].items():
        for method in _METHODS:
            if method in item:
                (tag,) = item[method].get("tags", ["others"])
                made = _operation(spec, path, method, item, tag)
                by_tag.setdefault(tag, []).append(made)
    return [Group(tag, told.get(tag, ""), found) for tag, found in by_tag.items() if found]


def matching(groups: Sequence[Group], words: str) -> Sequence[Group]:
    """Return the operations that have all these words."""
    wanted = words.lower().split()
    found = []
    for group in groups:
        fit = [each for each in group.operations if all(word in each.text for word in wanted)]
        if fit:
            found.append(group._replace(operations=fit))
    return found


def _put_in_place(spec: dict[str, Any]) -> None:
    """Put what each `$ref` names in its place, with what stands beside the `$ref`."""
    left: list[Any] = [spec]
    while left:
        here = left.pop()
        for key, inner in here.items() if isinstance(here, dict) else enumerate(here):
            if isinstance(inner, dict) and "$ref" in inner:
                found: Any = spec
                for part in inner["$ref"].removeprefix("#/").split("/"):
                    found = found[part]
                beside = {name: value for name, value in inner.items() if name != "$ref"}
                here[key] = {**found, **beside} if beside else found
                left += [here[key]] if beside else []
            elif isinstance(inner, (dict, list)):
                left.append(inner)


def _operation(
    spec: Mapping[str, Any], path: str, method: str, item: Mapping[str, Any], tag: str
) -> Operation:
    told = item[method]
    media = told.get("requestBody", {}).get("content", {})
    kind = _MEDIA if _MEDIA in media else next(iter(media), "")
    schema = media.get(kind, {}).get("schema", {})
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
                _type(each.get("schema", {})),
                each.get("description", ""),
                each.get("required", False),
                each["in"],
            )
            for each in (*item.get("parameters", ()), *told.get("parameters", ()))
        ],
        body=_rows(schema),
        answers=[
            (status, answer.get("description", ""), _rows(_content(answer)) if status < "3" else ())
            for status, answer in told["responses"].items()
        ],
        curl=_curl(f"{spec['servers'][0]['url']}{path}", method, kind, schema, is_public),
        text=f"{method} {path} {summary} {description} {tag}".lower(),
    )


def _curl(url: str, method: str, kind: str, schema: Schema, is_public: bool) -> str:
    """Return a command that calls the operation; the key is in the shell's environment."""
    verb = "" if method == "get" else f" -X {method.upper()}"
    lines = [f"curl{verb} {shlex.quote(url)}"]
    if not is_public:
        lines.append('-H "Authorization: Bearer $SERVICE_API_KEY"')
    if kind:
        lines.append(f"-H {shlex.quote(f'Content-Type: {kind}')}")
        body = _example(schema, _DEPTH) if kind == _MEDIA else "…"
        lines.append(f"--data {shlex.quote(json.dumps(body, ensure_ascii=False))}")
    return " \\\n  ".join(lines)


def _content(answer: Mapping[str, Any]) -> Schema:
    schema: Schema = answer.get("content", {}).get(_MEDIA, {}).get("schema", {})
    return schema


def _variants(schema: Schema) -> list[Schema]:
    """Return what a schema may be, but null."""
    each = schema.get("oneOf") or schema.get("anyOf") or schema.get("allOf") or [schema]
    return [one for one in each if one.get("type") != "null" or len(each) == 1]


def _rows(schema: Schema, within: str = "", depth: int = _DEPTH) -> list[Row]:
    return list(_members(schema, within, depth)) if schema and depth else []


def _members(schema: Schema, within: str, depth: int) -> Iterator[Row]:
    for variant in _variants(schema):
        if "items" in variant:
            yield from _rows(variant["items"], f"{within}[]", depth)
        required = variant.get("required", ())
        for name, told in variant.get("properties", {}).items():
            place = f"{within}.{name}" if within else name
            yield Row(place, _type(told), told.get("description", ""), name in required)
            yield from _rows(told, place, depth - 1)


def _type(schema: Schema) -> str:
    """Write what a value may be: `string, at most 200 characters, or null`."""
    words = []
    for variant in _variants(schema):
        kinds = variant.get("type", "any")
        named = [kinds] if isinstance(kinds, str) else list(kinds)
        text = " | ".join(kind for kind in named if kind != "null")
        if "enum" in variant:
            text = " | ".join(json.dumps(each) for each in variant["enum"] if each is not None)
        if "items" in variant:
            text = f"array of {_type(variant['items'])}"
        told = [variant["format"]] if "format" in variant else []
        told += [
            limit.format(variant[name])
            for name, limit in _LIMITS
            if variant.get(name) not in (None, *_UNTOLD)
        ]
        words.append(", ".join((text, *told)))
    either = (*schema.get("oneOf", ()), *schema.get("anyOf", ()))
    if "null" in (schema.get("type") or ()) or {"type": "null"} in either:
        words.append("null")
    return " or ".join(dict.fromkeys(words))


def _example(schema: Schema, depth: int) -> Any:
    """Return a value as the schema's examples have it: of an object, what it requires."""
    found = {**(_variants(schema) or [{}])[0], **schema}
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
        return {name: _example(inside[name], depth - 1) for name in wanted if depth}
    if "items" in found:
        return [_example(found["items"], depth - 1)] if depth else []
    return {"integer": 1, "number": 1, "boolean": True, "object": {}}.get(
        found.get("type", ""), "…"
    )
