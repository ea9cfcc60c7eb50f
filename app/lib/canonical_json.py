"""Canonical JSON (RFC 8785, "JCS"): the bytes that are hashed, signed and stored.

`dumps` writes them; `parse` (from `app.lib.strict_json`) reads bytes strictly. Store the bytes that
were hashed and hash the bytes that were stored; never serialise a stored value again.
"""

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from app.lib.strict_json import JSON, MAX_DEPTH, MAX_INTEGER, NotIJSON, NotJSON, parse

__all__ = ["JSON", "MAX_DEPTH", "MAX_INTEGER", "NotIJSON", "NotJSON", "dumps", "parse"]


def dumps(value: object) -> bytes:
    """Write a value as canonical JSON in UTF-8.

    Takes None, bool, int, float, str, list or tuple, and dict with str names, or subclasses of
    these. Raises TypeError for any other type, and ValueError for NaN, infinities, integers outside
    ±(2^53-1), lone surrogates, and what is nested too deep to write (or holds itself).
    """
    try:
        return _WRITERS[type(value)](value).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("A string holds a lone surrogate, which has no UTF-8 form.") from None
    except RecursionError:
        raise ValueError("The value is nested too deep, or holds itself.") from None


def _integer(value: int) -> str:
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ValueError("An integer is outside ±(2^53-1), where canonical JSON would round it.")
    return int.__repr__(value)


def _double(value: float) -> str:
    """ECMAScript's Number::toString, which RFC 8785 section 3.2.2.3 prescribes.

    Python finds the same shortest digits; only when to use an exponent, and how, differs.
    """
    if not math.isfinite(value):
        raise ValueError("NaN and infinities have no JSON form.")
    if value == 0:
        return "0"
    text = float.__repr__(value)
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return mantissa.removesuffix(".0")
    power = int(exponent)
    if -7 < power < 21:
        return f"{Decimal(text):f}"
    return f"{mantissa}e{power:+d}"


def _array(value: Iterable[object]) -> str:
    return "[" + ",".join([_WRITERS[type(item)](item) for item in value]) + "]"


def _object(value: dict[str, object]) -> str:
    members = []
    for name in _in_order(value):
        item = value[name]
        members.append(f"{encode_basestring(name)}:{_WRITERS[type(item)](item)}")
    return "{" + ",".join(members) + "}"


def _in_order(value: dict[str, object]) -> list[str]:
    """Sort by UTF-16 code units (RFC 8785 section 3.2.3), for ASCII the same as plain order."""
    try:
        names = sorted(value)
        if not "".join(names).isascii():
            names.sort(key=_utf16)
    except TypeError:
        raise TypeError("A name in an object is not a string.") from None
    return names


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")


class _Writers(dict[type, Callable[[Any], str]]):
    """How each type is written; a subclass is written as the type it comes from."""

    def __missing__(self, kind: type) -> Callable[[Any], str]:
        for base in kind.__mro__:
            if base in self:
                return self[base]
        raise TypeError(f"Canonical JSON has no form for {kind.__name__}.")


_WRITERS = _Writers(
    {
        type(None): {None: "null"}.__getitem__,
        bool: {True: "true", False: "false"}.__getitem__,
        int: _integer,
        float: _double,
        str: encode_basestring,
        list: _array,
        tuple: _array,
        dict: _object,
    }
)
