"""Any Python value as JSON that the service takes: the one rule, for `Recorder` and `Client`.

docs/sdk.md has the list. JSON within I-JSON passes unchanged. What has a plain form is converted.
What has none is marked in its place, as `<cycle>` is, or refused with its path (`strict`).
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from json.encoder import encode_basestring
from pathlib import PurePath
from typing import Any, Callable, Optional
from uuid import UUID

from record_service.errors import RecordsError

MAX_DEPTH = 100
"""Levels of one value; the service takes 128 for the whole of a record."""

MAX_BYTES = 8 * 1024 * 1024
"""The most bytes of one value; the service takes no more for a whole request."""

MAX_INTEGER = 2**53 - 1

Mask = Callable[[str, str], str]
"""Returns a text as it may be stored; the second argument is the path, as `/inputs/card`."""

_MOST_OF_REPR = 10_000
_INTEGRAL_BELOW = 1e21
_HALF = re.compile("[\ud800-\udfff]")
_Path = Optional["tuple[_Path, object]"]


class Unfit(RecordsError, ValueError):
    """A value has no form in JSON; `path` is the JSON pointer of its place."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        super().__init__(f"{path or 'The value'}: {why}.")


class _TooLarge(Exception):
    pass


def fit(
    value: Any,
    *,
    strict: bool = False,
    mask: Mask | None = None,
    most: int = MAX_BYTES,
    path: str = "",
) -> Any:
    """Return a value as JSON: None, bool, int, float, str, list and dict alone, a copy.

    `mask` sees every text, names and numbers (as text) included. A text that it raises for, or
    makes no text of, becomes `<masked: …>`. `most` is in bytes, `path` the pointer of the value.
    Raises `Unfit` with `strict`: for what would be marked, and for NaN, infinities, integers beyond
    ±(2^53-1) and halves of surrogate pairs.
    """
    fitter = _Fitter(strict, mask, most)
    try:
        return fitter.fit(value, (None, path) if path else None, MAX_DEPTH)
    except _TooLarge:
        if strict:
            raise Unfit(path, f"it is larger than {most} bytes") from None
        return f"<too large: more than {most} bytes>"


def encode(fitted: Any) -> str:
    """Return what `fit` returned as JSON text."""
    return json.dumps(fitted, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def text(value: object, most: int, default: str, mask: Mask | None = None, path: str = "") -> str:
    """Return a name or title: masked, without U+0000, 1 to `most` characters."""
    try:
        said = value if isinstance(value, str) else str(value)
    except Exception as error:  # noqa: BLE001  # from code of strangers
        said = f"<unreadable: {type(error).__name__}>"
    fitted = fit(said, mask=mask, path=path)
    said = fitted.replace("\0", "\ufffd")
    return (said if len(said) <= most else said[: most - 1] + "…") or default


class _Fitter:
    def __init__(self, strict: bool, mask: Mask | None, most: int) -> None:
        self._strict = strict
        self._mask = mask
        self._left = most
        self._above: set[int] = set()

    def fit(self, value: Any, path: _Path, levels: int) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value, path)
        if value is None or kind is bool:
            self._spend(5)
            return value
        if kind is int or kind is float:
            return self._number(value, path)
        if id(value) in self._above:
            return self._marked("cycle", path, "it holds itself")
        if levels <= 0:
            return self._marked("too deep", path, f"it is nested deeper than {MAX_DEPTH} levels")
        self._above.add(id(value))
        try:
            return self._other(value, path, levels - 1)
        except (_TooLarge, Unfit):
            raise
        except Exception as error:  # noqa: BLE001  # from code of strangers
            name = type(error).__name__
            return self._marked(f"unreadable: {name}", path, f"reading it raised {name}")
        finally:
            self._above.discard(id(value))

    def _other(self, value: Any, path: _Path, levels: int) -> Any:
        kind = type(value)
        if kind is dict or isinstance(value, Mapping):
            return self._object(value.items(), path, levels)
        if isinstance(value, Enum):
            return self.fit(value.value, path, levels)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return self._object(zip(kind._fields, value), path, levels)
        if isinstance(value, (list, tuple)):
            self._spend(2 + len(value))
            return [self.fit(each, (path, n), levels) for n, each in enumerate(value)]
        if isinstance(value, (set, frozenset)):
            return sorted((self.fit(each, path, levels) for each in value), key=encode)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return self._bytes(value, path)
        plain = _plain(value)
        if plain is not value:
            return self.fit(plain, path, levels)
        members = _members(value)
        if members is not None:
            return self._object(members.items(), path, levels)
        if self._strict:
            raise Unfit(_pointer(path), f"{kind.__name__} has no form in JSON")
        return self._text(_named(value), path)

    def _object(self, items: Any, path: _Path, levels: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        numbers: dict[str, int] = {}
        for name, each in items:
            key = self._text(name if type(name) is str else _key(name), path)
            unique = key
            while unique in made:
                # A mask may make thousands of names one.
                numbers[key] = numbers.get(key, 1) + 1
                unique = f"{key} ({numbers[key]})"
            made[unique] = self.fit(each, (path, unique), levels)
        self._spend(2 + 2 * len(made))
        return made

    def _number(self, value: Any, path: _Path) -> Any:
        self._spend(8)
        if isinstance(value, int):
            fits = -MAX_INTEGER <= value <= MAX_INTEGER
        else:
            # Canonical JSON writes such a double as an integer, which other readers would round.
            size = abs(value)
            fits = math.isfinite(value) and not (MAX_INTEGER < size < _INTEGRAL_BELOW)
        if fits and self._mask is None:
            return value
        if not fits and self._strict:
            raise Unfit(_pointer(path), "this number is none of JSON's; send it as text")
        said = _digits(value)
        masked = self._text(said, path)
        return value if fits and masked == said else masked

    def _bytes(self, value: Any, path: _Path) -> dict[str, str]:
        raw = bytes(value)
        self._spend(len(raw))
        if self._mask is not None:
            said = raw.decode("utf-8", "replace")
            masked = self._text(said, path)
            if masked != said:
                return {"text": masked}
        return {"base64": base64.b64encode(raw).decode()}

    def _text(self, value: str, path: _Path) -> str:
        if not value.isascii() and _HALF.search(value):
            if self._strict:
                raise Unfit(_pointer(path), "it holds half of a surrogate pair, no character")
            value = _HALF.sub("\ufffd", value)
        quoted = encode_basestring(value)
        self._spend(len(quoted) if quoted.isascii() else len(quoted.encode()))
        return value if self._mask is None else self._masked(self._mask, value, path)

    def _masked(self, mask: Mask, value: str, path: _Path) -> str:
        try:
            masked = mask(value, _pointer(path))
        except Exception as error:
            if self._strict:
                raise
            # Without the error's words: they may quote the text.
            return f"<masked: {type(error).__name__}>"
        if type(masked) is not str:
            return "<masked>"
        return masked if masked is value else _HALF.sub("\ufffd", masked)

    def _marked(self, mark: str, path: _Path, why: str) -> str:
        if self._strict:
            raise Unfit(_pointer(path), why)
        return f"<{mark}>"

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _TooLarge


def _plain(value: Any) -> Any:
    """Return what stands for a value of a type with one plain form; else the value itself."""
    if isinstance(value, (str, int, float)):
        base = next(each for each in (str, bool, int, float) if isinstance(value, each))
        return getattr(base, "__str__" if base is str else f"__{base.__name__}__")(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (Decimal, Fraction, UUID, PurePath)):
        return str(value)
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": str(value)}
    # NumPy's arrays and scalars, and what has their interface.
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        if getattr(value, "nbytes", 0) > MAX_BYTES:
            raise _TooLarge
        return value.tolist()
    return value


def _members(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a dataclass, a model of Pydantic or a class of attrs."""
    kind = type(value)
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if callable(getattr(kind, "model_dump", None)):
        dumped: Mapping[str, Any] = value.model_dump()
        return dumped
    if hasattr(kind, "__attrs_attrs__"):
        return {each.name: getattr(value, each.name) for each in kind.__attrs_attrs__}
    return None


def _key(name: object) -> str:
    plain = name.value if isinstance(name, Enum) else _plain(name)
    if plain is None or isinstance(plain, bool):
        return encode(plain)
    return _digits(plain) if isinstance(plain, (int, float)) else str(plain)


def _digits(value: Any) -> str:
    """Return a number as text; one of more digits than Python converts in hexadecimal."""
    if isinstance(value, float):
        named = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return named.get(value, "NaN" if math.isnan(value) else repr(value))
    return str(value) if -(10**4000) < value < 10**4000 else hex(value)


def _named(value: object) -> str:
    if isinstance(value, type) or callable(value):
        name = getattr(value, "__qualname__", None)
        if isinstance(name, str):
            return f"{getattr(value, '__module__', '')}.{name}"
    return repr(value)[:_MOST_OF_REPR]


def _pointer(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, part = path
        said = str(part)
        parts.append(said if said.startswith("/") and path is None else f"/{said}")
    return "".join(reversed(parts))
