"""Sealing at rest: AES-256-GCM under the newest key of MASTER_KEYS.

    version (1 byte, 0x01) | key id (4) | nonce (12, random) | ciphertext and its tag (16)

Older keys still open; the key id says what waits for `reseal`. The row's identity is authenticated:
sealed bytes copied into another row or column do not open there.
"""

import base64
import binascii
import re
import secrets
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.lib.crypto.randomness import random_bytes

_HEX = re.compile(r"([0-9a-f]{2}){32,}", re.IGNORECASE)
_VERSION = b"\x01"
_KEY_BYTES = 32
_KEY_ID_BYTES = 4
_NONCE_BYTES = 12
_TAG_BYTES = 16
_HEADER_BYTES = len(_VERSION) + _KEY_ID_BYTES
_OVERHEAD = _HEADER_BYTES + _NONCE_BYTES + _TAG_BYTES

KEY_NAMED_IN = _HEADER_BYTES
"""Sealed bytes name their key in so many bytes at their beginning."""

ALIKE_IN_NONE = _HEADER_BYTES + _NONCE_BYTES
"""No two seals begin with the same so many bytes."""


class CannotOpen(Exception):
    """Sealed bytes do not open: unknown key, other row, or changed. Holds nothing secret."""


class KeyMissing(CannotOpen):
    """The master key that sealed them is none of these: with it they may open."""


class MasterKeys:
    """The keys of MASTER_KEYS, newest first: the first seals, all open."""

    def __init__(self, keys: list[bytes]) -> None:
        """Take one or more keys of 32 bytes. Raises ValueError, quoting none of them."""
        if not keys:
            raise ValueError("There is no master key; make one with `openssl rand -base64 32`.")
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}
        if len(self._ciphers) != len(keys):
            raise ValueError("A master key stands there twice; remove one.")
        self._newest = _key_id(keys[0])

    @property
    def ids(self) -> tuple[str, ...]:
        """The public ids of the keys (8 hex digits each), newest first."""
        return tuple(key_id.hex() for key_id in self._ciphers)

    @property
    def header(self) -> bytes:
        """How everything begins that the newest key sealed: KEY_NAMED_IN bytes."""
        return _VERSION + self._newest

    @classmethod
    def parse(cls, text: str) -> "MasterKeys":
        """Read the setting: keys of 32 bytes, newest first, comma between.

        Each is base64, base64url, or 64 hex digits. Of more digits, which platforms generate, the
        SHA-256 is the key. Raises ValueError that says which entry is wrong, without quoting it.
        """
        return cls([_decode(entry, place) for place, entry in enumerate(text.split(","), 1)])

    @staticmethod
    def generate() -> str:
        """Return a fresh key as MASTER_KEYS takes it; docs/operations.md says how to rotate."""
        return base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode("ascii")

    def __repr__(self) -> str:
        return f"MasterKeys({', '.join(self.ids)})"

    def seal(self, plaintext: bytes, identity: str) -> bytes:
        """Seal bytes for one place, such as `webhooks/<tenant>/<id>/secret`, under the newest key.

        The nonce is random: one key is good for 2^32 seals (NIST SP 800-38D section 8.3).
        """
        header = self.header
        nonce = random_bytes(_NONCE_BYTES)
        sealed = self._ciphers[self._newest].encrypt(nonce, plaintext, header + identity.encode())
        return header + nonce + sealed

    def open(self, sealed: bytes, identity: str) -> bytes:
        """Return what was sealed for this identity. Raises CannotOpen."""
        if len(sealed) < _OVERHEAD or not sealed.startswith(_VERSION):
            raise CannotOpen("These are not sealed bytes, or they were cut short.")
        header, nonce = sealed[:_HEADER_BYTES], sealed[_HEADER_BYTES:][:_NONCE_BYTES]
        key_id = header[len(_VERSION) :]
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise KeyMissing(f"Sealed under master key {key_id.hex()}, not in MASTER_KEYS.")
        try:
            return cipher.decrypt(
                nonce, sealed[_HEADER_BYTES + _NONCE_BYTES :], header + identity.encode()
            )
        except InvalidTag:
            raise CannotOpen("The sealed bytes were changed, or belong to another row.") from None

    def reseal(self, sealed: bytes, identity: str) -> bytes:
        """Return what lies in sealed bytes, sealed anew under the newest key. Raises CannotOpen."""
        return self.seal(self.open(sealed, identity), identity)


def key_of(sealed: bytes) -> str | None:
    """Return the id of the key that sealed this, by its beginning; None if it is no seal."""
    if len(sealed) < _HEADER_BYTES or not sealed.startswith(_VERSION):
        return None
    return sealed[len(_VERSION) : _HEADER_BYTES].hex()


def _key_id(key: bytes) -> bytes:
    """Return a key's id: the start of its SHA-256."""
    return sha256(key).digest()[:_KEY_ID_BYTES]


def _decode(entry: str, place: int) -> bytes:
    # No key in base64 reads as hex digits: it has 43 characters, and its padding.
    if _HEX.fullmatch(entry.strip()):
        key = bytes.fromhex(entry)
        return key if len(key) == _KEY_BYTES else sha256(key).digest()
    text = entry.strip().rstrip("=").replace("-", "+").replace("_", "/")
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ValueError(
            f"Master key {place} is not {_KEY_BYTES} bytes in base64;"
            " make one with `openssl rand -base64 32`."
        )
    return key
