"""Idempotency keys: the first response to a request is kept for a day and returned again.

It is stored in the transaction of its effect, and sealed: it may contain a new key or secret.
"""

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

from app.core.callers import Caller
from app.database import Tx, cursor
from app.errors import IdempotencyKeyInUse, IdempotencyKeyReused
from app.lib.crypto.sealing import MasterKeys

_LOCK = "SELECT pg_try_advisory_xact_lock(%s)"
_WAIT = "SELECT pg_advisory_xact_lock(%s)"
_FIND = """
SELECT body_sha256, status, sealed_answer FROM idempotency_keys
 WHERE tenant_id = %s AND api_key_id = %s AND scope = %s
   AND created_at > clock_timestamp() - interval '24 hours'
"""
_KEEP = """
INSERT INTO idempotency_keys (tenant_id, api_key_id, scope, body_sha256, status, sealed_answer)
VALUES (%(tenant)s, %(key)s, %(scope)s, %(body)s, %(status)s, %(answer)s)
ON CONFLICT (tenant_id, api_key_id, scope) DO UPDATE
   SET body_sha256 = excluded.body_sha256, status = excluded.status,
       sealed_answer = excluded.sealed_answer, created_at = clock_timestamp()
"""
_FORGET = """
DELETE FROM idempotency_keys WHERE created_at < clock_timestamp() - interval '24 hours'
"""


@dataclass(frozen=True)
class Request:
    """One repeatable request: tenant, API key, scope (method, path, key), keyed body hash."""

    tenant_id: UUID
    api_key_id: UUID
    scope: bytes
    body_sha256: bytes

    @classmethod
    def of(cls, caller: Caller, key: str, method: str, path: str, body: bytes) -> "Request":
        """Describe a request; its Idempotency-Key counts for this API key, method and path only."""
        scope = sha256(f"{method} {path}\n{key}".encode()).digest()
        # Keyed with the Idempotency-Key, which is not stored: a plain hash reveals a small body.
        keyed = hmac.digest(key.encode(), body, "sha256")
        return cls(caller.tenant_id, caller.key_id, scope, keyed)

    @property
    def _lock(self) -> int:
        name = self.tenant_id.bytes + self.api_key_id.bytes + self.scope
        return int.from_bytes(sha256(name).digest()[:8], "big", signed=True)

    @property
    def _identity(self) -> str:
        return identity(self.tenant_id, self.api_key_id, self.scope)

    def find(
        self, session: Tx, master_keys: MasterKeys, *, wait: bool = False
    ) -> tuple[int, bytes] | None:
        """Return the stored (status, response body) of this request, or None if there is none.

        Locks the key until the transaction ends, so no other process handles the request
        meanwhile. Raises `IdempotencyKeyInUse` when another transaction holds the lock, unless
        `wait`, and `IdempotencyKeyReused` when the first request had another body.
        """
        cur = cursor(session)
        if wait:
            cur.execute(_WAIT, (self._lock,))
        elif cur.execute(_LOCK, (self._lock,)).fetchone() == (False,):
            raise IdempotencyKeyInUse(
                "The first request with this Idempotency-Key is still running; repeat it later."
            )
        kept = cur.execute(_FIND, (self.tenant_id, self.api_key_id, self.scope)).fetchone()
        if kept is None:
            return None
        body_sha256, status, sealed = kept
        if body_sha256 != self.body_sha256:
            raise IdempotencyKeyReused(
                detail="This Idempotency-Key was used with another body; use a new one."
            )
        return status, master_keys.open(sealed, self._identity)

    def keep(self, session: Tx, master_keys: MasterKeys, status: int, answer: bytes) -> None:
        """Store the response to this request for 24 hours."""
        values: dict[str, Any] = {
            "tenant": self.tenant_id,
            "key": self.api_key_id,
            "scope": self.scope,
            "body": self.body_sha256,
            "status": status,
            "answer": master_keys.seal(answer, self._identity),
        }
        cursor(session).execute(_KEEP, values)


def forget_old(session: Tx) -> int:
    """Delete stored responses older than 24 hours, of all tenants; return how many."""
    return cursor(session).execute(_FORGET).rowcount


def identity(tenant_id: UUID, api_key_id: UUID, scope: bytes) -> str:
    """Return the identity (associated data) under which a stored response is sealed."""
    return f"idempotency_keys/{tenant_id}/{api_key_id}/{scope.hex()}/answer"
