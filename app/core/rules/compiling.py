"""Compiles rules: names, types and functions, and why an expression is refused, with its place.

Only evaluators' processes import this: it loads the runtime of CEL.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

from cel_expr_python import cel
from cel_expr_python.ext import ext_strings

from app.core.rules.language import FIELDS, VARIABLES, Erred, pieces

_OBJECT = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
_TYPES = {
    "record": _OBJECT,
    "content": cel.Type.DYN,
    "steps": cel.Type.List(_OBJECT),
    "step": _OBJECT,
    "session": _OBJECT,
}
_TEXT_OF = {
    "string": cel.Type.STRING,
    "int": cel.Type.INT,
    "double": cel.Type.DOUBLE,
    "bool": cel.Type.BOOL,
    "map": cel.Type.Map(cel.Type.DYN, cel.Type.DYN),
    "list": cel.Type.List(cel.Type.DYN),
    "null": cel.Type.NULL,
}
_CARD = re.compile(r"(?<![0-9])[0-9](?:[ -]?[0-9]){12,18}(?![0-9])")
_ERROR = re.compile(r"ERROR: <input>:(-?\d+):(-?\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']*)' \(in container ''\)")
_STATUS = re.compile(r"^[A-Z_]+: | \[[A-Z_]+\]$")


class Refused(NamedTuple):
    """Why an expression does not compile: a place in it, both from 1, and a sentence."""

    line: int
    column: int
    detail: str


def text_of(value: object) -> str:
    """Return a value as text: strings as they are, all else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=text_of)


def has_card_number(text: str) -> bool:
    """Say whether a text has 13 to 19 digits that pass Luhn's check (ISO/IEC 7812-1, annex B)."""
    for found in _CARD.finditer(text):
        digits = [int(each) for each in found[0] if each.isdigit()]
        doubled = (sum(divmod(2 * each, 10)) for each in digits[-2::-2])
        if len(set(digits)) > 1 and (sum(digits[::-2]) + sum(doubled)) % 10 == 0:
            return True
    return False


@lru_cache(maxsize=16)
def environment(names: tuple[str, ...]) -> Any:
    """Return the environment of expressions that see these variables, and our functions."""
    functions = [
        cel.FunctionDecl(
            "text",
            [
                cel.Overload(
                    f"text_{name}", return_type=cel.Type.STRING, parameters=[kind], impl=text_of
                )
                for name, kind in _TEXT_OF.items()
            ],
        ),
        cel.FunctionDecl(
            "hasCardNumber",
            [
                cel.Overload(
                    "has_card_number",
                    return_type=cel.Type.BOOL,
                    parameters=[cel.Type.STRING],
                    impl=has_card_number,
                )
            ],
        ),
    ]
    types = {name: _TYPES.get(name, cel.Type.DYN) for name in names}
    return cel.NewEnv(variables=types, extensions=[ext_strings.ExtStrings()], functions=functions)


@lru_cache(maxsize=2000)
def compiled(on: str, text: str) -> Any:
    """Return an expression of a rule on this; raises `RuntimeError` where it does not compile."""
    return environment(VARIABLES[on]).compile(text)


def check(on: str, fields: Mapping[str, str | None]) -> dict[str, Refused]:
    """Return why fields of a rule do not compile; `title` and `detail` are templates."""
    wanted = {"when": ("BOOL",), "dedupe": ("STRING",)}
    found: dict[str, Refused] = {}
    for name, text in fields.items():
        if text is None:
            continue
        refused = (
            _refusal(on, text, wanted[name]) if name in wanted else _template_refusal(on, text)
        )
        if refused is not None:
            found[name] = refused
    return found


def _template_refusal(on: str, template: str) -> Refused | None:
    try:
        for text, begins in list(pieces(template)):
            refused = None if begins is None else _refusal(on, text, ())
            if begins is not None and refused is not None:
                return _placed(template, begins + _offset(text, refused), refused.detail)
    except Erred as unclosed:
        return _placed(template, int(str(unclosed)), "Close this expression with }}.")
    return None


def _refusal(on: str, text: str, types: Sequence[str]) -> Refused | None:
    """Return why an expression does not compile, or is of none of these types."""
    try:
        given = compiled(on, text).return_type().name()
    except RuntimeError as error:
        return _explained(on, text, str(error))
    if types and given not in (*types, "DYN"):
        return Refused(1, 1, f"This gives {given.lower()}; send one that gives {types[0].lower()}.")
    return _unknown_field(on, text)


def _explained(on: str, text: str, error: str) -> Refused:
    found = _ERROR.search(error)
    if found is None or int(found[1]) < 1:
        return Refused(1, 1, (found[3] if found else cause(error)).strip())
    place = Refused(int(found[1]), int(found[2]), found[3].strip()[:500])
    undeclared = _UNDECLARED.search(place.detail)
    if undeclared is None:
        return place
    name = undeclared[1].split(".")[0]
    declared = ", ".join(f"`{each}`" for each in VARIABLES[on])
    near = get_close_matches(name[:100], (*VARIABLES[on], "text", "hasCardNumber"), 1)
    advice = f"`{near[0]}` is" if near else f"there are {declared}"
    return _placed(text, _begin_of(text, place, name), f"`{name}` is not declared; {advice}.")


def _unknown_field(on: str, text: str) -> Refused | None:
    """Return the refusal of a name that no field of a record, step or session has.

    Maps have no declared fields. So each field is declared as a variable of its qualified name,
    which CEL resolves first.
    """
    known = {
        f"{owner}.{name}": owner
        for owner, names in FIELDS.items()
        for name in names
        if owner.split(".")[0] in VARIABLES[on]
    }
    plain = {name for name in VARIABLES[on] if name not in FIELDS}
    try:
        environment((*sorted(plain), *sorted(known))).compile(text)
    except RuntimeError as error:
        for found in _ERROR.finditer(str(error)):
            undeclared = _UNDECLARED.search(found[3])
            name = undeclared[1] if undeclared else ""
            owner = next((each for each in sorted(FIELDS, reverse=True) if name == each), "")
            parent, _, field = name.rpartition(".")
            if not owner and parent in FIELDS and name not in known:
                place = Refused(int(found[1]), int(found[2]), "")
                near = get_close_matches(field[:100], FIELDS[parent], 1)
                advice = f"`{near[0]}` is" if near else "it has " + ", ".join(FIELDS[parent])
                detail = f"`{field}` is no field of {parent}; {advice}."
                return _placed(text, _begin_of(text, place, field), detail)
    return None


def _offset(text: str, place: Refused) -> int:
    lines = text.split("\n")
    return sum(len(each) + 1 for each in lines[: place.line - 1]) + place.column - 1


def _begin_of(text: str, place: Refused, name: str) -> int:
    """Return where a name begins: CEL names the dot behind it, or the parenthesis."""
    at = _offset(text, place)
    before, behind = text.rfind(name, 0, at + len(name)), text.find(name, at)
    return before if before >= 0 else max(behind, 0)


def _placed(text: str, offset: int, detail: str) -> Refused:
    before = text[:offset].split("\n")
    return Refused(len(before), len(before[-1]) + 1, detail[:500])


def cause(error: str) -> str:
    """Return an error of CEL without its status codes."""
    return _STATUS.sub("", _STATUS.sub("", error)).replace("\0", " ")[:500] or "It failed."
