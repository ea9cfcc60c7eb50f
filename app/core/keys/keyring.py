"""Authentication of requests by API key."""

import time
from dataclasses import replace
from uuid import UUID

from app.core.callers import Caller, Pin, Role
from app.database import Database, cursor
from app.errors import BAD_KEY, TenantSuspended, Unauthenticated
from app.lib.crypto import api_keys
from app.lib.repeater import Repeater

_LOOKUP = "SELECT tenant_id, id, role, pin_agent_id, pin_principal FROM find_api_key(%s)"

_ENDED = "SELECT tenant_id, id, role, state FROM find_ended_key(%s)"

_NO_KEY = "Send an API key: Authorization: Bearer <key>."

# Most cached callers; a full cache is cleared, which bounds its memory.
_MOST_KNOWN = 10_000
# The last uses of keys are written so often, and at the end for so long.
_EVERY_SECONDS = 20.0
_LAST_WRITE_SECONDS = 1.0
# Rows are locked in one order everywhere, so two processes do not deadlock. A use after a key's end
# was refused, and does not count.
_WRITE = """
WITH used AS (
    SELECT tenant_id, id, clock_timestamp() - seconds * interval '1 second' AS at
      FROM unnest(%b::uuid[], %b::uuid[], %b::float8[]) AS new (tenant_id, id, seconds)
), stale AS (
    SELECT k.tenant_id, k.id, date_trunc('minute', used.at, 'UTC') AS minute
      FROM api_keys AS k JOIN used USING (tenant_id, id)
     WHERE (k.last_used_at IS NULL OR k.last_used_at < date_trunc('minute', used.at, 'UTC'))
       AND (k.revoked_at IS NULL OR k.revoked_at > used.at)
       AND (k.expires_at IS NULL OR k.expires_at > used.at)
     ORDER BY k.tenant_id, k.id FOR NO KEY UPDATE OF k
)
UPDATE api_keys AS k SET last_used_at = stale.minute
  FROM stale WHERE k.tenant_id = stale.tenant_id AND k.id = stale.id
"""


class KeyEnded(Unauthenticated):
    """The key was revoked or has expired: its caller gets the answer of an unknown one.

    The audit chain is told which key that was.
    """

    def __init__(self, former: Caller, state: str) -> None:
        """Take what the key was, and `revoked` or `expired`."""
        super().__init__(BAD_KEY)
        self.former = former
        self.state = state


def authenticate(
    database: Database, key_text: str, request_id: str, origin: str | None = None
) -> Caller:
    """Return the caller of a key, from the key's current row.

    Raises `Unauthenticated`, as `KeyEnded` for a key that once was valid, and `TenantSuspended` for
    one that is valid again once its tenant is resumed. A malformed key costs no query.
    """
    digest = _digest(key_text)
    row = database.ask(_LOOKUP, (digest,))
    if row is not None:
        tenant_id, key_id, role, agent_id, principal = row
        pin = None if agent_id is None else Pin(agent_id, principal)
        return Caller(tenant_id, key_id, Role(role), pin, request_id, origin=origin)
    ended = database.ask(_ENDED, (digest,))
    if ended is None:
        raise Unauthenticated(BAD_KEY)
    tenant_id, key_id, role, state = ended
    if state == "suspended":
        raise TenantSuspended("The tenant of this key was suspended by the operator.")
    raise KeyEnded(Caller(tenant_id, key_id, Role(role), None, request_id, origin=origin), state)


class Keyring:
    """Cache of callers by key or session, and last uses of keys; one per process, for its threads.

    It caches what never changes in a key (tenant, id, role, pin), and never whether the key is
    valid: revocation and expiry take effect at once, in every process.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[bytes, Caller] = {}
        self._used: dict[tuple[UUID, UUID], float] = {}
        self._thread = Repeater(
            "key-usage",
            self._write,
            _EVERY_SECONDS,
            failed="key_usage_not_written",
            at_end=_LAST_WRITE_SECONDS,
        )

    def close(self) -> None:
        """Write the last uses of keys, for at most a second."""
        self._thread.close(_LAST_WRITE_SECONDS)

    def authenticate(self, key_text: str, request_id: str, origin: str | None = None) -> Caller:
        """Return the caller of a key, from the key's current row, and cache it.

        Raises as the function of this name does.
        """
        digest = _digest(key_text)
        try:
            found = authenticate(self._database, key_text, request_id, origin)
        except (Unauthenticated, TenantSuspended):
            self.forget(digest)
            raise
        self.remember(digest, found)
        self.note_use(found)
        return found

    def known(self, key_text: str) -> Caller | None:
        """Return the cached caller of a key, which may have ended since; asks no database."""
        return self.known_by(api_keys.digest(key_text)) if key_text else None

    def known_by(self, digest: bytes) -> Caller | None:
        """Return the cached caller of a key or session by its digest, likewise."""
        return self._known.get(digest)

    def remember(self, digest: bytes, found: Caller) -> None:
        """Cache the caller that a key or session has now."""
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[digest] = replace(found, confirmed=False)

    def forget(self, digest: bytes) -> None:
        """Drop the caller of a key or session that is refused now."""
        self._known.pop(digest, None)

    def recognise(self, key_text: str, request_id: str, origin: str | None = None) -> Caller:
        """Return the caller of a key; from the cache it is not `confirmed`.

        Raises as `authenticate` does.
        """
        known = self._known.get(_digest(key_text))
        if known is None:
            return self.authenticate(key_text, request_id, origin)
        return self.used(known, request_id, origin)

    def used(self, known: Caller, request_id: str, origin: str | None) -> Caller:
        """Return a cached caller as that of a request, and note that its key is used now."""
        self.note_use(known)
        return replace(known, request_id=request_id, origin=origin)

    def tenant_of(self, key_text: str) -> UUID | None:
        """Return the tenant of a key that was valid when it was last looked up, if it is cached.

        For fair turns alone: it says nothing about what the key may do now.
        """
        known = self.known(key_text)
        return None if known is None else known.tenant_id

    def note_use(self, caller: Caller) -> None:
        """Note in memory that a key was used now; executes no statement."""
        self._used[caller.tenant_id, caller.key_id] = time.monotonic()
        self._thread.begin()

    def write_uses(self) -> None:
        """Write the uses noted since the last time; after an error the next call writes them."""
        self._thread.work()

    def _write(self) -> None:
        # Copied atomically, as requests keep adding notes.
        used = self._used.copy()
        if not used:
            return
        now = time.monotonic()
        rows = [(*key, now - at) for key, at in used.items()]
        columns = [list(column) for column in zip(*rows, strict=True)]
        with self._database.across_tenants() as session:
            cursor(session).execute(_WRITE, columns)
        for key, at in used.items():
            # A key used again meanwhile is kept for the next write.
            if self._used.get(key) == at:
                self._used.pop(key, None)


def _digest(key_text: str) -> bytes:
    if not key_text:
        raise Unauthenticated(_NO_KEY)
    if not api_keys.well_formed(key_text):
        raise Unauthenticated(BAD_KEY)
    return api_keys.digest(key_text)
