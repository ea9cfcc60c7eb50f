"""The unsubscribe token of a mail: it clears the address that the mail went to, without a key.

It is sealed under `MASTER_KEYS`, and names the tenant and one setting of its address: once the
address was set anew, it does nothing. It does not expire, since old mails are where people look for
it.
"""

import base64
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from app.lib.crypto.sealing import CannotOpen, MasterKeys

_IDENTITY = "digests/unsubscribe"
_ID_BYTES, _HASH_BYTES = 16, 16
_LONGEST = 200


@dataclass(frozen=True)
class Subscription:
    """One setting of a tenant's address, known by the beginning of a SHA-256."""

    tenant_id: UUID
    address_hash: bytes

    @classmethod
    def of(cls, tenant_id: UUID, address: str, nonce: UUID | None) -> "Subscription":
        """Name the subscription of this address; `nonce` is new each time the address is set.

        None for an address that was last set before settings had one.
        """
        named = address.encode() + (b"" if nonce is None else b"\0" + nonce.bytes)
        return cls(tenant_id, sha256(named).digest()[:_HASH_BYTES])


def write(master_keys: MasterKeys, subscription: Subscription) -> str:
    """Return a token, of letters, digits, `-` and `_`; each time another."""
    plain = subscription.tenant_id.bytes + subscription.address_hash
    return base64.urlsafe_b64encode(master_keys.seal(plain, _IDENTITY)).rstrip(b"=").decode()


def read(master_keys: MasterKeys, token: str) -> Subscription | None:
    """Return what a token names; None for any other text."""
    if len(token) > _LONGEST or not token.isascii():
        return None
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        plain = master_keys.open(sealed, _IDENTITY)
    except (ValueError, CannotOpen):
        return None
    return Subscription(UUID(bytes=plain[:_ID_BYTES]), plain[_ID_BYTES:])
