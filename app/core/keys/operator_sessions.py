"""Sign-ins of the operator to the console, by a key that a command on the server makes.

A key opens one session and is then worth nothing; both end together, hours after it was made. Only
SHA-256 digests are stored.
"""

import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

from app.database import Tx, cursor

LONGEST = timedelta(hours=24)
_PREFIX = "opk_"
_SECRET_BYTES = 32

_MAKE = """
INSERT INTO operator_sessions (digest, name, expires_at)
VALUES (%s, %s, clock_timestamp() + %s) RETURNING expires_at
"""
# The row's digest is the key's at first, then the session's: a key counts once.
_ENTER = """
UPDATE operator_sessions SET digest = %s, entered_at = clock_timestamp(), origin = %s
 WHERE digest = %s AND entered_at IS NULL AND expires_at > clock_timestamp()
"""
_FIND = """
SELECT name, expires_at FROM operator_sessions
 WHERE digest = %s AND entered_at IS NOT NULL AND expires_at > clock_timestamp()
"""
_END = "DELETE FROM operator_sessions WHERE digest = %s"
_END_ALL = "DELETE FROM operator_sessions"


class OperatorKey(NamedTuple):
    """A key that was just made: its text, shown once, and its end."""

    text: str
    expires_at: datetime


def make(tx: Tx, name: str, lasts: timedelta) -> OperatorKey:
    """Make a key for an operator, which is the end of those that have expired."""
    cursor(tx).execute("DELETE FROM operator_sessions WHERE expires_at < clock_timestamp()")
    text = _PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    row = cursor(tx).execute(_MAKE, (_digest(text), name, lasts)).fetchall()[0]
    return OperatorKey(text, row[0])


def end_all(tx: Tx) -> int:
    """End every operator's key and session; return how many."""
    return cursor(tx).execute(_END_ALL).rowcount


def is_key(text: str) -> bool:
    """Say whether a text is written as an operator's key."""
    return text.startswith(_PREFIX)


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
        row = cursor(tx).execute(_FIND, (_digest(self.text),)).fetchone()
        return None if row is None else (row[0], row[1])

    def end(self, tx: Tx) -> None:
        """End the session."""
        cursor(tx).execute(_END, (_digest(self.text),))


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "replace")).digest()
