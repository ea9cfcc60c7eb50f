"""Protobuf's wire format, as far as OTLP needs it, in Python alone.

Held to protobuf's own decoder by fuzzing. Unlike that one it gives way to other threads, uses no
memory beyond the values, and takes text that is not UTF-8: exporters send such text.
https://protobuf.dev/programming-guides/encoding/
"""

import struct

MOST_FIELDS = 100_000
"""The most fields of one message: its size in bytes would let in millions of empty ones."""

_LARGEST = (1 << 64) - 1
_uint64 = struct.Struct("<Q").unpack_from
_uint32 = struct.Struct("<I").unpack_from

Field = tuple[int, int, int]
"""A field: its tag, then where its bytes begin and end, or its number and 0."""


class Malformed(ValueError):
    """The bytes are no message of this kind."""


class TooManyFields(Malformed):
    """A message has more fields than are read."""


def fields(raw: bytes, start: int, end: int) -> list[Field]:
    """Return the fields of the message between two places, in their order.

    A number is as it stands on the wire: unsigned, a double as its bits. Raises `Malformed`.
    """
    found: list[Field] = []
    add = found.append
    at = start
    try:
        for _ in range(MOST_FIELDS + 1):
            if at >= end:
                break
            tag = raw[at]
            at += 1
            if tag > 127:
                tag, at = _varint(raw, at - 1)
            kind = tag & 7
            if kind == 2:
                size = raw[at]
                at += 1
                if size > 127:
                    size, at = _varint(raw, at - 1)
                add((tag, at, at + size))
                at += size
            elif kind == 1:
                add((tag, _uint64(raw, at)[0], 0))
                at += 8
            elif kind == 0:
                number, at = _varint(raw, at)
                add((tag, number, 0))
            elif kind == 5:
                add((tag, _uint32(raw, at)[0], 0))
                at += 4
            else:
                raise Malformed("a field has a wire type that OTLP does not use")
            if not 8 <= tag < 1 << 32:
                raise Malformed("a field has a number that no field can have")
        else:
            raise TooManyFields(f"a message has more than {MOST_FIELDS} fields")
    except (IndexError, struct.error):
        at = end + 1
    if at != end:
        raise Malformed("a message ends before its last field does")
    return found


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 64 bits and the place behind it."""
    number = raw[at]
    at += 1
    if number < 128:
        return number, at
    number &= 127
    for shift in range(7, 70, 7):
        byte = raw[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number > _LARGEST:
                break
            return number, at
    raise Malformed("a number has more than 64 bits")


def varint(number: int) -> bytes:
    """Write a number that is not negative."""
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)


def text_field(number: int, text: str) -> bytes:
    """Write a field of text; of empty text nothing, as proto3 leaves it out."""
    raw = text.encode()
    return varint(number << 3 | 2) + varint(len(raw)) + raw if raw else b""
