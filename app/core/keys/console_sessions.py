"""Sessions of the console: a browser that presented an API key once.

Each request joins the session with its key, so a key that is revoked, expires or is suspended ends
its sessions at once.
"""

import base64
import hmac
import secrets
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

from app.core.callers import Caller, Pin, Role
from app.database import Tx, cursor

IDLE = timedelta(hours=12)
LONGEST = timedelta(days=7)
_TENANT_BYTES = 16
_SECRET_BYTES = 32
# Limits the writes of `last_used_at`; an idle session may end this much early.
_USE_IS_WRITTEN_EVERY = timedelta(minutes=1)

_BEGIN = "INSERT INTO console_sessions (tenant_id, digest, api_key_id) VALUES (%s, %s, %s)"
_FIND = """
SELECT k.id, k.role, k.pin_agent_id, k.pin_principal, k.name,
       s.last_used_at < clock_timestamp() - %(write_every)s AS was_used_before
  FROM console_sessions AS s JOIN api_keys AS k ON k.tenant_id = s.tenant_id AND k.id = s.api_key_id
 WHERE s.tenant_id = %(tenant)s AND s.digest = %(digest)s
   AND s.created_at > clock_timestamp() - %(longest)s
   AND s.last_used_at > clock_timestamp() - %(idle)s
   AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
"""
_USE = """
UPDATE console_sessions SET last_used_at = clock_timestamp() WHERE tenant_id = %s AND digest = %s
"""
_END = "DELETE FROM console_sessions WHERE tenant_id = %s AND digest = %s"
_FORGET = """
DELETE FROM console_sessions
 WHERE created_at < clock_timestamp() - %s OR last_used_at < clock_timestamp() - %s
"""


@dataclass(frozen=True)
class Token:
    """The session's cookie: the tenant, by which the session is found, and a secret."""

    tenant_id: UUID
    secret: bytes

    @classmethod
    def new(cls, tenant_id: UUID) -> "Token":
        """Return a new random token."""
        return cls(tenant_id, secrets.token_bytes(_SECRET_BYTES))

    @classmethod
    def read(cls, text: str) -> "Token | None":
        """Parse the cookie's `text`; None if it is not a token."""
        try:
            raw = base64.b64decode(text, altchars=b"-_", validate=True)
        except ValueError:
            return None
        if len(raw) != _TENANT_BYTES + _SECRET_BYTES:
            return None
        return cls(UUID(bytes=raw[:_TENANT_BYTES]), raw[_TENANT_BYTES:])

    @property
    def text(self) -> str:
        """The token as the cookie's value."""
        return base64.urlsafe_b64encode(self.tenant_id.bytes + self.secret).decode()

    @property
    def form_token(self) -> str:
        """The CSRF token: each form of this session carries it, and no other site can know it."""
        return hmac.digest(self.secret, b"console form", "sha256").hex()

    @property
    def digest(self) -> bytes:
        """The SHA-256 by which the session is stored and found."""
        return sha256(self.secret).digest()

    def begin(self, tx: Tx, caller: Caller) -> None:
        """Begin the session of a caller that has just presented the key."""
        cursor(tx).execute(_BEGIN, (self.tenant_id, self.digest, caller.key_id))

    def find(
        self, tx: Tx, request_id: str, *, use: bool, origin: str | None = None
    ) -> tuple[Caller, str] | None:
        """Return the session's caller and the key's name; None once the session or key has ended.

        Without `use` the session stays idle: a page that refreshes itself does not keep it alive.
        """
        values = {
            "tenant": self.tenant_id,
            "digest": self.digest,
            "idle": IDLE,
            "longest": LONGEST,
            "write_every": _USE_IS_WRITTEN_EVERY,
        }
        row = cursor(tx).execute(_FIND, values).fetchone()
        if row is None:
            return None
        key_id, role, agent_id, principal, name, was_used_before = row
        if use and was_used_before:
            cursor(tx).execute(_USE, (self.tenant_id, self.digest))
        pin = None if agent_id is None else Pin(agent_id, principal)
        return Caller(self.tenant_id, key_id, Role(role), pin, request_id, origin=origin), name

    def end(self, tx: Tx) -> None:
        """End the session; does nothing if it has ended."""
        cursor(tx).execute(_END, (self.tenant_id, self.digest))


def forget_old(tx: Tx) -> int:
    """Delete expired and idle sessions of all tenants; return how many."""
    return cursor(tx).execute(_FORGET, (LONGEST, IDLE)).rowcount
