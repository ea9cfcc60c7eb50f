"""The unsubscribe token of a mail: it clears the address that the mail went to, without a key.

It is sealed under `MASTER_KEYS`, and names the tenant and one setting of its address: once the
address is set again, it has no effect. It does not expire, because people look for it in old mails.
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
    """One setting of a tenant's address, identified by a truncated SHA-256."""

    tenant_id: UUID
    address_hash: bytes

    @classmethod
    def of(cls, tenant_id: UUID, address: str, nonce: UUID | None) -> "Subscription":
        """Return the subscription of this address; `nonce` changes each time the address is set.

        It is None for an address that was last set before the nonce existed.
        """
        named = address.encode() + (b"" if nonce is None else b"\0" + nonce.bytes)
        return cls(tenant_id, sha256(named).digest()[:_HASH_BYTES])


def write(master_keys: MasterKeys, subscription: Subscription) -> str:
    """Return a token of letters, digits, `-` and `_`, different each time."""
    plain = subscription.tenant_id.bytes + subscription.address_hash
    return base64.urlsafe_b64encode(master_keys.seal(plain, _IDENTITY)).rstrip(b"=").decode()


def read(master_keys: MasterKeys, token: str) -> Subscription | None:
    """Return the subscription that a token names; None for any other text."""
    if len(token) > _LONGEST or not token.isascii():
        return None
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        plain = master_keys.open(sealed, _IDENTITY)
    except (ValueError, CannotOpen):
        return None
    return Subscription(UUID(bytes=plain[:_ID_BYTES]), plain[_ID_BYTES:])
