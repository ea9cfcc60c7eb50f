"""The text of an API key: `svc_`, 40 random base62 characters, 6 more of CRC-32.

The prefix and the checksum let a secret scanner recognise a leaked key without asking us, and let
us refuse a mistyped one without asking the database. Only the SHA-256 of a key is ever stored: 238
bits of randomness need no slow hash.
"""

import re
import secrets
from hashlib import sha256
from zlib import crc32

_PREFIX = "svc_"
_RANDOM_LENGTH = 40
_CHECKSUM_LENGTH = 6

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_SHAPE = re.compile(f"{_PREFIX}[0-9A-Za-z]{{{_RANDOM_LENGTH + _CHECKSUM_LENGTH}}}")


def new() -> str:
    """Make a key; show its text once and keep its `digest`."""
    unsigned = _PREFIX + _base62(secrets.randbelow(62**_RANDOM_LENGTH), _RANDOM_LENGTH)
    return unsigned + _checksum(unsigned)


def well_formed(text: str) -> bool:
    """Whether `text`, whatever it holds, could be one of our keys; its checksum is no secret."""
    if _SHAPE.fullmatch(text) is None:
        return False
    return text[-_CHECKSUM_LENGTH:] == _checksum(text[:-_CHECKSUM_LENGTH])


def digest(text: str) -> bytes:
    """Return the SHA-256 (32 bytes) by which a key is stored and found.

    Any text has one: what came in a header may be no key at all, and is then merely not found.
    """
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _checksum(unsigned: str) -> str:
    return _base62(crc32(unsigned.encode("ascii")), _CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))
