"""The token of a share link: 32 random bytes, in base64url without padding.

Only its SHA-256 is ever stored: 256 bits of randomness need no slow hash.
"""

import hmac
import re
import secrets
from hashlib import sha256

LENGTH = 43
"""Characters of a token."""

_SHAPE = re.compile(rf"[A-Za-z0-9_-]{{{LENGTH}}}", re.ASCII)


def new() -> str:
    """Make a token; show it once and keep its `digest`."""
    return secrets.token_urlsafe(32)


def well_formed(text: str) -> bool:
    """Whether `text`, whatever it holds, could be a token."""
    return _SHAPE.fullmatch(text) is not None


def digest(token: str) -> bytes:
    """Return the SHA-256 (32 bytes) of the token's text, by which a link is stored and found."""
    return sha256(token.encode("ascii")).digest()


def address_hash(token: str, address: str) -> bytes:
    """Return 32 bytes by which one address is known again at this link, and only there.

    The token is the key, and it is not stored: so a reader of the database can neither try all
    addresses, nor tell whether two links were opened from the same one.
    """
    return hmac.digest(token.encode("ascii"), address.encode(), "sha256")
