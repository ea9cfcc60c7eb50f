"""Sessions of the console: of a browser that presented a key, or whom a provider signed in.

Each request joins the session with its key, or with the tenant's groups: a key that ends, or a
group that loses its role, ends its sessions at once. Who leaves a group at the provider keeps the
session until it expires. Operators' sessions are of no tenant.
"""

import base64
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller, Person, Pin, Role
from app.database import Tx, cursor
from app.errors import AuditChainBroken, NotFound

IDLE = timedelta(hours=12)
LONGEST = timedelta(days=7)
"""The longest session of a key; a person's is as long as OIDC_SESSION_SECONDS says."""
_TENANT_BYTES = 16
_SECRET_BYTES = 32
# Limits the writes of `last_used_at`; an idle session may end this much early.
_USE_IS_WRITTEN_EVERY = timedelta(minutes=1)

_BEGIN = """
INSERT INTO console_sessions (tenant_id, digest, id, api_key_id, person_id, groups, origin,
                              expires_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, clock_timestamp() + %s)
"""
_KNOW_PERSON = """
INSERT INTO people AS p (tenant_id, id, issuer, subject, email, name)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (tenant_id, id) DO UPDATE SET email = excluded.email, name = excluded.name
 WHERE (p.email, p.name) IS DISTINCT FROM (excluded.email, excluded.name)
"""
# The highest of the roles that a person's groups have in the tenant.
_ROLE = """
SELECT g.role FROM tenant_groups AS g JOIN tenants AS t ON t.id = g.tenant_id
 WHERE g.tenant_id = s.tenant_id AND g.name = ANY(s.groups) AND t.suspended_at IS NULL
 ORDER BY array_position(ARRAY['admin', 'write', 'read'], g.role) LIMIT 1
"""
_GOOD = f"""
  FROM console_sessions AS s
  LEFT JOIN api_keys AS k ON k.tenant_id = s.tenant_id AND k.id = s.api_key_id
       AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
  LEFT JOIN people AS p ON p.tenant_id = s.tenant_id AND p.id = s.person_id
  LEFT JOIN LATERAL ({_ROLE}) AS g ON p.id IS NOT NULL
 WHERE s.tenant_id = %(tenant)s AND s.expires_at > clock_timestamp()
   AND s.last_used_at > clock_timestamp() - %(idle)s AND coalesce(k.role, g.role) IS NOT NULL
"""
_FIND = f"""
SELECT coalesce(k.id, p.id), coalesce(k.role, g.role), k.pin_agent_id, k.pin_principal,
       coalesce(k.name, p.name), p.issuer, p.subject, p.email, s.id,
       s.last_used_at < clock_timestamp() - %(write_every)s AS was_used_before
  {_GOOD} AND s.digest = %(digest)s
"""
_USE = """
UPDATE console_sessions SET last_used_at = clock_timestamp() WHERE tenant_id = %s AND digest = %s
"""
_END = "DELETE FROM console_sessions WHERE tenant_id = %s AND digest = %s RETURNING id"
_FORGET = """
DELETE FROM console_sessions
 WHERE expires_at < clock_timestamp() OR last_used_at < clock_timestamp() - %s
"""
_ROWS = f"""
SELECT s.id, coalesce(k.id, p.id) AS caller_id, coalesce(k.name, p.name) AS name, p.email,
       coalesce(k.role, g.role) AS role, s.origin, s.created_at, s.last_used_at, s.expires_at
  {_GOOD} AND (%(before)s::uuid IS NULL OR s.id < %(before)s)
   AND (%(of)s::uuid IS NULL OR coalesce(s.api_key_id, s.person_id) = %(of)s)
 ORDER BY s.id DESC LIMIT %(limit)s
"""
_END_SOME = """
DELETE FROM console_sessions
 WHERE tenant_id = %(tenant)s AND id <> %(own)s
   AND (%(id)s::uuid IS NULL OR id = %(id)s)
   AND (%(of)s::uuid IS NULL OR coalesce(api_key_id, person_id) = %(of)s)
RETURNING id, coalesce(api_key_id, person_id)
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

    def begin(
        self, session: Session, caller: Caller, longest: timedelta, groups: Sequence[str] = ()
    ) -> AuditChainBroken | None:
        """Begin the session of a caller that has just signed in, for `longest` at most.

        A person's `groups` are those that the tenant knows. Returns the error of a broken chain,
        which has no entry of it: who investigates that must get in.
        """
        person, identifier = caller.person, ids.new()
        if person is not None:
            told = (person.issuer, person.subject, person.email, person.name)
            cursor(session).execute(_KNOW_PERSON, (self.tenant_id, person.id, *told))
        kept = (caller.key_id, None, None) if person is None else (None, person.id, list(groups))
        values = (self.tenant_id, self.digest, identifier, *kept, caller.origin, longest)
        cursor(session).execute(_BEGIN, values)
        return _tell(session, caller, "console.sign_in", identifier)

    def find(
        self, tx: Tx, request_id: str, *, use: bool, origin: str | None = None
    ) -> tuple[Caller, str, UUID] | None:
        """Return the session's caller, their name, and its id; None once it or its key has ended.

        Without `use` the session stays idle: a page that refreshes itself does not keep it alive.
        """
        values = {
            "tenant": self.tenant_id,
            "digest": self.digest,
            "idle": IDLE,
            "write_every": _USE_IS_WRITTEN_EVERY,
        }
        row = cursor(tx).execute(_FIND.encode(), values).fetchone()
        if row is None:
            return None
        caller_id, role, agent_id, principal, name, issuer, subject, email, own, was_before = row
        if use and was_before:
            cursor(tx).execute(_USE, (self.tenant_id, self.digest))
        pin = None if agent_id is None else Pin(agent_id, principal)
        person = None if issuer is None else Person(issuer, subject, name, email)
        found = Caller(
            self.tenant_id, caller_id, Role(role), pin, request_id, origin=origin, person=person
        )
        return found, name, own

    def end(self, session: Session, request_id: str, origin: str) -> AuditChainBroken | None:
        """End the session, if it has not ended; returns as `begin` does."""
        found = self.find(session, request_id, use=False, origin=origin)
        row = cursor(session).execute(_END, (self.tenant_id, self.digest)).fetchone()
        if row is None or found is None:
            return None
        return _tell(session, found[0], "console.sign_out", row[0])


def _tell(
    session: Session, caller: Caller, action: str, identifier: UUID
) -> AuditChainBroken | None:
    try:
        chain.append_by(session, caller, action, target=_target(identifier))
    except AuditChainBroken as error:
        return error
    return None


def _target(identifier: UUID) -> tuple[str, str]:
    return "console_session", ids.text("con", identifier)


def forget_old(tx: Tx) -> int:
    """Delete expired and idle sessions of all tenants; return how many."""
    return cursor(tx).execute(_FORGET, (IDLE,)).rowcount


@dataclass(frozen=True)
class SignedIn:
    """A session that is good now; of a person `email` as well, if the provider told one."""

    id: UUID
    caller_id: UUID
    name: str
    email: str | None
    role: str
    origin: str | None
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime


def rows(
    session: Session, tenant_id: UUID, before: UUID | None, limit: int, of: UUID | None = None
) -> Sequence[SignedIn]:
    """Return up to `limit` good sessions of a tenant, newest first, older than the id `before`.

    `of` is a key or a person.
    """
    wanted: dict[str, Any] = {"tenant": tenant_id, "idle": IDLE}
    wanted |= {"before": before, "limit": limit, "of": of}
    return cursor(session, class_row(SignedIn)).execute(_ROWS.encode(), wanted).fetchall()


def end_some(
    session: Session, caller: Caller, own: UUID, *, one: UUID | None = None, of: UUID | None = None
) -> int:
    """End other sessions of the caller's tenant than `own`; return how many.

    Only the session `one`, or only those `of` a key or person, if given. Raises `NotFound` where
    there is no such session.
    """
    wanted = {"tenant": caller.tenant_id, "own": own, "id": one, "of": of}
    ended = cursor(session).execute(_END_SOME, wanted).fetchall()
    if one is not None and not ended:
        raise NotFound("There is no such session: it has ended.")
    for identifier, whose in ended:
        details = {"of": ids.of_caller(whose)}
        target = _target(identifier)
        chain.append_by(session, caller, "console.end_session", target=target, details=details)
    return len(ended)


# Operators: a key that a command on the server makes opens one session, and is then worth nothing.
# Both end together, hours after the key was made. Only SHA-256 digests are stored.
OPERATOR_LONGEST = timedelta(hours=24)
_OPERATOR_PREFIX = "opk_"
_MAKE = """
INSERT INTO operator_sessions (digest, name, expires_at)
VALUES (%s, %s, clock_timestamp() + %s) RETURNING expires_at
"""
# The row's digest is the key's at first, then the session's: a key counts once.
_ENTER = """
UPDATE operator_sessions SET digest = %s, entered_at = clock_timestamp(), origin = %s
 WHERE digest = %s AND entered_at IS NULL AND expires_at > clock_timestamp()
"""
_FIND_OPERATOR = """
SELECT name, expires_at FROM operator_sessions
 WHERE digest = %s AND entered_at IS NOT NULL AND expires_at > clock_timestamp()
"""


def make_operator_key(tx: Tx, name: str, lasts: timedelta) -> tuple[str, datetime]:
    """Make a key for an operator, and delete those expired; return its text and its end."""
    cursor(tx).execute("DELETE FROM operator_sessions WHERE expires_at < clock_timestamp()")
    text = _OPERATOR_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    row = cursor(tx).execute(_MAKE, (_digest(text), name, lasts)).fetchall()[0]
    return text, row[0]


def end_operators(tx: Tx) -> int:
    """End every operator's key and session; return how many."""
    return cursor(tx).execute("DELETE FROM operator_sessions").rowcount


def is_operator_key(text: str) -> bool:
    """Say whether a text is written as an operator's key."""
    return text.startswith(_OPERATOR_PREFIX)


@dataclass(frozen=True)
class OperatorToken:
    """The cookie of an operator's session."""

    text: str

    @classmethod
    def enter(cls, tx: Tx, key_text: str, origin: str) -> "OperatorToken | None":
        """Exchange a key for a session; None for one that is unknown, used or expired."""
        made = cls(secrets.token_urlsafe(_SECRET_BYTES))
        wanted = (_digest(made.text), origin, _digest(key_text))
        return made if cursor(tx).execute(_ENTER, wanted).rowcount else None

    @property
    def form_token(self) -> str:
        """The CSRF token of the session's forms."""
        return hmac.digest(self.text.encode(), b"operator form", "sha256").hex()

    def find(self, tx: Tx) -> tuple[str, datetime] | None:
        """Return the operator's name and the session's end; None once it has ended."""
        row = cursor(tx).execute(_FIND_OPERATOR, (_digest(self.text),)).fetchone()
        return None if row is None else (row[0], row[1])

    def end(self, tx: Tx) -> None:
        """End the session."""
        cursor(tx).execute("DELETE FROM operator_sessions WHERE digest = %s", (_digest(self.text),))


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "replace")).digest()
