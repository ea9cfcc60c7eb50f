"""Ed25519 (RFC 8032) signatures of bundles, and how a public key is named and published.

A key's id is the first 16 hex digits of the SHA-256 of its SubjectPublicKeyInfo in DER, so it can
be computed from the PEM: `openssl pkey -pubin -in public-key.pem -outform DER | sha256sum`.
"""

import base64
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KEY_BYTES = 32


@dataclass(frozen=True)
class PublicKey:
    """Verifies what its `SigningKey` signed; `raw` is the point's 32 bytes (RFC 8032, 5.1.5)."""

    raw: bytes

    def __post_init__(self) -> None:
        """Raise ValueError for what is not 32 bytes."""
        if len(self.raw) != KEY_BYTES:
            raise ValueError(f"An Ed25519 public key has {KEY_BYTES} bytes.")

    @cached_property
    def id(self) -> str:
        """The key's id: 16 hex digits."""
        return sha256(self._encoded(Encoding.DER)).hexdigest()[:16]

    @property
    def pem(self) -> bytes:
        """The SubjectPublicKeyInfo in PEM (RFC 8410)."""
        return self._encoded(Encoding.PEM)

    @property
    def jwk(self) -> dict[str, str]:
        """The key as a JSON Web Key (RFC 8037, section 2)."""
        x = base64.urlsafe_b64encode(self.raw).rstrip(b"=").decode("ascii")
        return {
            "kty": "OKP",
            "crv": "Ed25519",
            "x": x,
            "kid": self.id,
            "use": "sig",
            "alg": "EdDSA",
        }

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Say whether this key signed exactly these bytes."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def _encoded(self, encoding: Encoding) -> bytes:
        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return key.public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)


class SigningKey:
    """A private key. Only `seed` gives it away: seal that, and show it nowhere."""

    __slots__ = ("_key", "public")

    def __init__(self, seed: bytes) -> None:
        """Take the 32 bytes of RFC 8032, 5.1.5. Raises ValueError, quoting nothing."""
        if len(seed) != KEY_BYTES:
            raise ValueError(f"An Ed25519 private key has {KEY_BYTES} bytes.")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> "SigningKey":
        """Make a fresh key."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes from which the key is made again."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of the signature over exactly these bytes."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"SigningKey({self.public.id})"
