"""What the library does not read of a timestamp response: BER, and genTime with all its digits.

Authorities may send BER (RFC 5652 section 5.1): certificates and revocation lists in any order, and
the status `grantedWithMods` (RFC 3161 section 2.4.2). None of that is signed. Of genTime the
library drops the fraction of the second.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_INTEGER = 0x02
# In SignedData (RFC 5652 section 5.1): certificates and crls, both implicitly tagged sets.
_UNSIGNED_SETS = (0xA0, 0xA1)
_GRANTED, _WITH_MODS = b"\x00", b"\x01"
# In UTC, with a fraction of any length that does not end with a zero (RFC 3161 section 2.4.2).
_GENERALIZED_TIME = 0x18
_TIME = re.compile(
    rb"([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})(\.[0-9]*[1-9])?Z"
)


class _Element(NamedTuple):
    """A tag, and where in the bytes the element begins, its content begins, and both end."""

    tag: int
    begin: int
    content: int
    end: int


class _Unreadable(Exception):
    """Not the DER of a response."""


def strict(response: bytes) -> bytes:
    """Return a response (DER) with ordered sets and `granted`; as it is if it cannot be read.

    For parsing alone: what is kept and given out is the response as it came. No length changes.
    """
    made = bytearray(response)
    try:
        (whole,) = _elements(response, 0, len(response))
        status, token = _inside(response, whole)
        granted = _inside(response, status)[0]
        if granted.tag == _INTEGER and response[granted.content : granted.end] == _WITH_MODS:
            made[granted.content : granted.end] = _GRANTED
        _, explicit = _inside(response, token)
        (signed,) = _inside(response, explicit)
        for each in _inside(response, signed):
            if each.tag in _UNSIGNED_SETS:
                _order(made, _inside(response, each))
    except (_Unreadable, ValueError, IndexError):
        return response
    return bytes(made)


def gen_time(response: bytes) -> str:
    """Return a response's genTime in RFC 3339, with the digits that the authority sent.

    Raises ValueError where there is none. Whether it was signed, the caller has to know.
    """
    try:
        (whole,) = _elements(response, 0, len(response))
        _, token = _inside(response, whole)
        _, explicit = _inside(response, token)
        (signed,) = _inside(response, explicit)
        _, _, encapsulated, *_ = _inside(response, signed)
        _, content = _inside(response, encapsulated)
        (octets,) = _inside(response, content)
        (info,) = _inside(response, octets)
        _, _, _, _, time, *_ = _inside(response, info)
    except (_Unreadable, ValueError, IndexError):
        raise ValueError("It has no genTime.") from None
    found = _TIME.fullmatch(response[time.content : time.end])
    if time.tag != _GENERALIZED_TIME or found is None:
        raise ValueError("Its genTime is not as RFC 3161 writes it.")
    year, month, day, hour, minute, second, fraction = (
        (part or b"").decode("ascii") for part in found.groups()
    )
    return f"{year}-{month}-{day}T{hour}:{minute}:{second}{fraction}Z"


def _order(made: bytearray, members: list[_Element]) -> None:
    """Put the members of a set in the order of their bytes (X.690 section 11.6)."""
    if members:
        ordered = sorted(bytes(made[each.begin : each.end]) for each in members)
        made[members[0].begin : members[-1].end] = b"".join(ordered)


def _inside(data: bytes, element: _Element) -> list[_Element]:
    return list(_elements(data, element.content, element.end))


def _elements(data: bytes, begin: int, end: int) -> Iterator[_Element]:
    while begin < end:
        content, size = begin + 2, data[begin + 1]
        if size >= 0x80:
            content += size - 0x80
            size = int.from_bytes(data[begin + 2 : content], "big")
        if content + size > end:
            raise _Unreadable
        yield _Element(data[begin], begin, content, content + size)
        begin = content + size
