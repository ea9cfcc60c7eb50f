"""Reading JSON strictly: the one way bytes from outside become values. Nothing is repaired.

What is not JSON in UTF-8 (RFC 8259), or begins with a byte-order mark, is `NotJSON`. What I-JSON
(RFC 7493) keeps out is `NotIJSON`, with a pointer to the first place. docs/formats.md lists both.
"""

import json
import math
import re
from array import array
from collections.abc import Callable
from itertools import accumulate
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
    cut = _cut_where_too_deep(raw)
    if cut is not None:
        # The C scanner recurses, so it must not see the whole of what may be nothing but brackets.
        text = cut.decode()
    try:
        value: JSON = _READER.decode(text)
        _check_surrogates(text, value)
    except (ValueError, RecursionError):
        _blame(text)
        # The document is innocent: the caller has no stack left to read it with.
        raise
    if cut is not None:
        raise NotIJSON(_pointer(_path_to_last(value)), _DEPTH)
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


# No hook sees arrays, so depth is found in the text between strings: piece by piece, since no other
# thread runs while C goes through a megabyte.
_OTHER_BYTES = bytes(set(range(256)) - set(b"[]{}"))
_UP, _DOWN = 1, 255
_STEPS = bytes({91: _UP, 123: _UP, 93: _DOWN, 125: _DOWN}.get(byte, 0) for byte in range(256))
_CLOSING = bytes.maketrans(b"[{", b"]}")
_PIECE = 128


def _cut_where_too_deep(raw: bytes) -> bytes | None:
    """Cut a document behind its first bracket that is too deep, and close what is open there.

    None for a document without such a bracket.
    """
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return None
    # Without escapes every second piece between quotes is a string's.
    pieces = raw.replace(b"\\\\", b"__").replace(b'\\"', b"__").split(b'"')
    if _place_too_deep(b"".join(pieces[::2]).translate(_STEPS, _OTHER_BYTES)) is None:
        return None
    pieces[1::2] = map(bytes, map(len, pieces[1::2]))
    blanked = b'"'.join(pieces)
    cut = _place_too_deep(blanked.translate(_STEPS))
    opened = bytearray()
    brackets = blanked[:cut].translate(None, _OTHER_BYTES)
    for bracket in brackets.replace(b"[]", b"").replace(b"{}", b"").replace(b"[]", b""):
        if bracket in b"[{":
            opened.append(bracket)
        elif opened:
            opened.pop()
    return raw[:cut] + bytes(reversed(opened)).translate(_CLOSING)


def _place_too_deep(steps: bytes) -> int | None:
    """Return after how many steps it is too deep for the first time, if ever."""
    depth = 0
    for at in range(0, len(steps), _PIECE):
        piece = steps[at : at + _PIECE]
        ups = piece.count(_UP)
        if depth + ups > MAX_DEPTH:
            depths = [*accumulate(array("b", piece), initial=depth)]
            if MAX_DEPTH + 1 in depths:
                return at + depths.index(MAX_DEPTH + 1)
        depth += ups - piece.count(_DOWN)
    return None


def _path_to_last(value: Any) -> list[str | int]:
    """Return the path to the last value of a document that was cut."""
    path: list[str | int] = []
    while value:
        last: str | int = next(reversed(value)) if type(value) is dict else len(value) - 1
        path.append(last)
        value = value[last]
    return path


_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _check_surrogates(text: str, value: Any) -> None:
    # Only an escape can bring in half of a pair: UTF-8 has no bytes for it.
    if _ESCAPED_SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode("utf-8")


# A refusal is certain (or the stack is short): a second reading keeps what the first loses, and a
# walk in the order of the document names the first fault. Numbers that pass are not read again.


class _Members(list[tuple[str, Any]]):
    """An object as it was written, equal names and all."""


class _Fault:
    """Stands in the tree where a number was refused."""

    def __init__(self, detail: str) -> None:
        self.detail = detail


def _or_fault(read: Callable[[str], object]) -> Callable[[str], _Fault | None]:
    def fault(literal: str) -> _Fault | None:
        try:
            read(literal)
        except _Suspicion as suspicion:
            return _Fault(str(suspicion))
        return None

    return fault


_WITNESS = json.JSONDecoder(
    object_pairs_hook=_Members,
    parse_int=_or_fault(_integer),
    parse_float=_or_fault(_double),
    parse_constant=_constant,
)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _blame(text: str) -> None:
    """Raise NotJSON or NotIJSON for the first fault of the document, if it has any."""
    try:
        tree = _WITNESS.decode(text)
    except json.JSONDecodeError as error:
        raise NotJSON(f"{error.msg} (line {error.lineno}, column {error.colno}).") from None
    _accuse(tree, [])


def _accuse(value: Any, path: list[str | int]) -> None:
    """Raise NotIJSON for the first fault of a value; `path` leads to it."""
    kind = type(value)
    if kind is _Fault:
        raise NotIJSON(_pointer(path), value.detail)
    if kind is str and _LONE_SURROGATE.search(value):
        raise NotIJSON(_pointer(path), _SURROGATE)
    if kind is _Members:
        seen: set[str] = set()
        for name, child in value:
            if _LONE_SURROGATE.search(name):
                # No answer can carry such a name, so the pointer ends at its object.
                raise NotIJSON(_pointer(path), _SURROGATE_NAME)
            path.append(name)
            if name in seen:
                raise NotIJSON(_pointer(path), _DUPLICATE)
            seen.add(name)
            _accuse(child, path)
            path.pop()
    elif kind is list:
        for place, child in enumerate(value):
            path.append(place)
            _accuse(child, path)
            path.pop()


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
