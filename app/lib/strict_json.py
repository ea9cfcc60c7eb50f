"""Reading JSON strictly: the one way bytes from outside become values. Nothing is repaired.

What is not JSON in UTF-8 (RFC 8259), or begins with a byte-order mark, is `NotJSON`. What I-JSON
(RFC 7493) keeps out is `NotIJSON`, with a pointer to the first place. docs/formats.md lists both.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

MAX_DEPTH = 128
MAX_INTEGER = 2**53 - 1

_LONGEST_INTEGER = len(str(-MAX_INTEGER))
_SMALLEST_WITH_EXPONENT = 1e21
# Each double has a decimal of at most so many digits that reads as the same double.
_MOST_DIGITS = 17

_DEPTH = f"The document is nested deeper than {MAX_DEPTH} levels here: flatten it."
_DUPLICATE = "This name appears more than once in its object: keep one."
_INTEGER = "This integer is outside ±(2^53-1), where a double rounds: send it as a string."
_WRITTEN_AS_INTEGER = (
    "Canonical JSON writes this number as an integer outside ±(2^53-1), where a double rounds: "
    "send it as a string."
)
_OVERFLOW = "This number is too large for a double: send it as a string."
_UNDERFLOW = "This number is so small that a double of it is 0: send it as a string."
_DIGITS = (
    f"This number has more than {_MOST_DIGITS} significant digits, and a double rounds it: "
    "send it as a string."
)
_SURROGATE = "This string holds half of a surrogate pair, which is not a character."
_SURROGATE_NAME = "A name in this object holds half of a surrogate pair, which is not a character."


class NotJSON(ValueError):
    """The bytes are not one JSON text in UTF-8 (RFC 8259)."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class NotIJSON(ValueError):
    """JSON outside I-JSON (RFC 7493); `pointer` (RFC 6901) says where, "" being the whole."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer or 'the document'}: {detail}")
        self.pointer = pointer
        self.detail = detail


def parse(raw: bytes) -> JSON:
    """Read one JSON text; objects become dicts in the order written.

    Raises NotJSON or NotIJSON. Time and memory grow in proportion to `raw`, whatever it holds.
    """
    text = _text(raw)
    try:
        value: JSON = _READER.decode(text)
        _check_depth(text, value)
        _check_surrogates(text, value)
    except (ValueError, RecursionError):
        _blame(text)
        # The document is innocent: the caller has no stack left to read it with.
        raise
    return value


def _text(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJSON(f"Not UTF-8: byte {error.start + 1} cannot be decoded.") from None
    if text.startswith("\ufeff"):
        raise NotJSON("The text begins with a byte-order mark: send it without.")
    return text


# The reading itself is the C scanner's; hooks see what it would let pass. A hook cannot know where
# it stands, so it only raises a suspicion.


class _Suspicion(ValueError):
    """Something in the document may not pass; `_blame` finds out where."""


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise _Suspicion(_DUPLICATE)
    return found


def _integer(literal: str) -> int:
    # Length first: int() of a megabyte of digits is slow, or refused by the interpreter.
    if len(literal) > _LONGEST_INTEGER:
        raise _Suspicion(_INTEGER)
    number = int(literal)
    if not -MAX_INTEGER <= number <= MAX_INTEGER:
        raise _Suspicion(_INTEGER)
    return number


def _double(literal: str) -> float:
    # Digits first: a literal may have a megabyte of them.
    if len(literal) > _MOST_DIGITS and len(_significant(literal)) > _MOST_DIGITS:
        raise _Suspicion(_DIGITS)
    number = float(literal)
    size = abs(number)
    if size == 0 and _significant(literal):
        raise _Suspicion(_UNDERFLOW)
    if size > MAX_INTEGER and not _SMALLEST_WITH_EXPONENT <= size < math.inf:
        raise _Suspicion(_OVERFLOW if size == math.inf else _WRITTEN_AS_INTEGER)
    return number


def _significant(literal: str) -> str:
    """Return a number's digits, without the zeros that say only how large it is."""
    mantissa = literal.lower().partition("e")[0]
    return mantissa.replace(".", "").lstrip("-0").rstrip("0")


def _constant(name: str) -> NoReturn:
    raise NotJSON(f"{name} is not a JSON number.")


_READER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_double, parse_constant=_constant
)


def _check_depth(text: str, value: Any) -> None:
    # No hook sees arrays; but few documents have brackets enough to be too deep.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise _Suspicion(_DEPTH)


_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _check_surrogates(text: str, value: Any) -> None:
    # Only an escape can bring in half of a pair: UTF-8 has no bytes for it.
    if _ESCAPED_SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode("utf-8")


# A refusal is certain (or the stack is short): a second, slower reading keeps what it finds, and a
# walk in the order of the document names the first fault.


class _Members(list[tuple[str, Any]]):
    """An object as it was written, equal names and all."""


class _Fault:
    """Stands in the tree where a number was refused."""

    def __init__(self, detail: str) -> None:
        self.detail = detail


def _or_fault(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def attempt(literal: str) -> Any:
        try:
            return read(literal)
        except _Suspicion as suspicion:
            return _Fault(str(suspicion))

    return attempt


_WITNESS = json.JSONDecoder(
    object_pairs_hook=_Members,
    parse_int=_or_fault(_integer),
    parse_float=_or_fault(_double),
    parse_constant=_constant,
)


def _blame(text: str) -> None:
    """Raise NotJSON or NotIJSON for the first fault of the document, if it has any."""
    try:
        tree = _WITNESS.decode(_shallow_part(text))
    except json.JSONDecodeError as error:
        raise NotJSON(f"{error.msg} (line {error.lineno}, column {error.colno}).") from None
    _accuse(tree, [])


# A string that is never closed runs to the end, or each of its quotes would be tried as a first.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_TO_NEXT_BRACKET = re.compile(rf'(?:[^"\[\]{{}}]++|{_STRING})*+([\[\]{{}}]?)', re.DOTALL)
_CLOSING = {"[": "]", "{": "}"}


def _shallow_part(text: str) -> str:
    """Cut a document behind its first bracket that is too deep, and close what is open there.

    The C scanner recurses, so it must not see the whole of what may be nothing but brackets.
    """
    closing: list[str] = []
    for match in _TO_NEXT_BRACKET.finditer(text):
        bracket = match[1]
        if bracket in _CLOSING:
            closing.append(_CLOSING[bracket])
        elif closing:
            closing.pop()
        if len(closing) > MAX_DEPTH:
            return text[: match.end()] + "".join(reversed(closing))
    return text


def _accuse(value: Any, path: list[str | int]) -> None:
    if isinstance(value, _Fault):
        raise NotIJSON(_pointer(path), value.detail)
    if isinstance(value, str) and _LONE_SURROGATE.search(value):
        raise NotIJSON(_pointer(path), _SURROGATE)
    if isinstance(value, list):
        if len(path) == MAX_DEPTH:
            raise NotIJSON(_pointer(path), _DEPTH)
        for step, child in _steps(value, path):
            path.append(step)
            _accuse(child, path)
            path.pop()


def _steps(parent: list[Any], path: list[str | int]) -> Iterator[tuple[str | int, Any]]:
    if not isinstance(parent, _Members):
        yield from enumerate(parent)
        return
    seen: set[str] = set()
    for name, child in parent:
        if _LONE_SURROGATE.search(name):
            # No answer can carry such a name, so the pointer ends at its object.
            raise NotIJSON(_pointer(path), _SURROGATE_NAME)
        if name in seen:
            raise NotIJSON(_pointer([*path, name]), _DUPLICATE)
        seen.add(name)
        yield name, child


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
