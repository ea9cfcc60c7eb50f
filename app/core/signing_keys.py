"""The service's signing keys: one for bundles and packs, one for the log, older ones.

Private keys are sealed in the database. A retired key only verifies. No bundle is dated after its
key's `retired_at`: a signer reads the time first, then the key, and `retired_at` is slightly in
the future; nor before `created_at`: it then reads again.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.audit import chain
from app.database import Tx, cursor, database_now
from app.errors import AuditChainBroken, Conflict, NotFound
from app.evidence.signing_certificates import SigningChain
from app.ledger.notes import VerifierKey
from app.lib.crypto.sealing import MasterKeys
from app.lib.crypto.signing import PublicKey, SigningKey
from app.models import LogGeneration
from app.models import SigningKey as SigningKeyRow

# Advisory lock number; unique in this database.
_LOCK = 7_264_301_560


class Purpose(enum.StrEnum):
    """A signing key's purpose; no key has two."""

    BUNDLE = "bundle"
    LOG = "log"


_CURRENT = """
SELECT key_id, sealed_private_key, created_at FROM signing_keys
 WHERE purpose = %s AND retired_at IS NULL
"""
_INSERT = """
INSERT INTO signing_keys (key_id, purpose, public_key, sealed_private_key)
VALUES (%s, %s, %s, %s) RETURNING created_at
"""

_REVOKED = "SELECT revoked_at FROM signing_keys WHERE key_id = %s"
_END = "UPDATE signing_keys SET retired_at = clock_timestamp() + %s WHERE key_id = %s"
_UNTIL_COMMITTED = timedelta(seconds=10)

_SEALED = "SELECT sealed_private_key FROM signing_keys WHERE key_id = %s"


def current(tx: Tx, master_keys: MasterKeys, purpose: Purpose) -> SigningKey:
    """Return the current signing key; the first call creates it."""
    return current_with_age(tx, master_keys, purpose)[0]


def current_with_age(
    tx: Tx, master_keys: MasterKeys, purpose: Purpose
) -> tuple[SigningKey, datetime]:
    """Return the current signing key and when it was created; the first call creates it."""
    cur = cursor(tx)
    found = cur.execute(_CURRENT, (purpose,)).fetchone()
    if found is None:
        # Concurrent calls get the same key.
        cur.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        found = cur.execute(_CURRENT, (purpose,)).fetchone()
    if found is None:
        return _insert(tx, master_keys, purpose)
    return _opened(master_keys, *found[:2]), found[2]


def current_id(tx: Tx, master_keys: MasterKeys, purpose: Purpose) -> str:
    """Return the id of the current signing key without opening it; the first call creates it."""
    found = cursor(tx).execute(_CURRENT, (purpose,)).fetchone()
    return current(tx, master_keys, purpose).public.id if found is None else str(found[0])


def rows(session: Session) -> Sequence[SigningKeyRow]:
    """Return every key there ever was, oldest first."""
    return session.scalars(select(SigningKeyRow).order_by(SigningKeyRow.created_at)).all()


def public_key(session: Session, key_id: str) -> PublicKey:
    """Return the public half of a key, current or retired."""
    raw = session.scalars(
        select(SigningKeyRow.public_key).where(SigningKeyRow.key_id == key_id)
    ).one()
    return PublicKey(raw)


def opened(tx: Tx, master_keys: MasterKeys, key_id: str) -> SigningKey:
    """Return a key by its id, current or retired, opened with MASTER_KEYS.

    Its public half is derived from the sealed key: that in the table may be forged. Raises
    LookupError if there is no such key, `CannotOpen` if these MASTER_KEYS did not seal it.
    """
    sealed = cursor(tx, scalar_row).execute(_SEALED, (key_id,)).fetchone()
    if sealed is None:
        raise LookupError(f"There is no key {key_id}.")
    return _opened(master_keys, key_id, sealed)


def of_bundles(session: Session, master_keys: MasterKeys, key_id: str | None) -> SigningKey:
    """Return a key that signs or signed bundles, by default the current one.

    Raises `NotFound` for another id, and `CannotOpen` if these MASTER_KEYS did not seal it.
    """
    if key_id is None:
        return current(session, master_keys, Purpose.BUNDLE)
    row = session.get(SigningKeyRow, key_id)
    if row is None or row.purpose != Purpose.BUNDLE:
        raise NotFound(f"No key {key_id} signs bundles: see `app.manage signing-key list`.")
    return opened(session, master_keys, key_id)


@dataclass(frozen=True)
class Replaced:
    """The id of a key that was retired, or revoked, and of the one that took its place, if any did.

    `untold` lists the broken audit chains, which get no entry of it.
    """

    retired: str | None
    current: str | None
    untold: Mapping[UUID, AuditChainBroken]


def rotate(session: Session, master_keys: MasterKeys) -> Replaced:
    """Retire the key that signs bundles and create the next.

    Needs a session that sees every tenant: each audit chain gets an entry. The log's key is not
    rotated: it is the log's identity, and ends with it (`app/core/log/succession.py`).
    """
    old, new = replace(session, master_keys, Purpose.BUNDLE)
    target, details = ("signing_key", new.public.id), {"retired": old}
    untold = chain.append_to_all(session, "signing_key.rotate", target=target, details=details)
    _settle(session, old)
    return Replaced(old, new.public.id, untold)


def revoke(
    session: Session,
    master_keys: MasterKeys,
    key_id: str,
    reason: str,
    since: datetime | None = None,
) -> Replaced:
    """Revoke a key as of `since` (default: now); `reason` goes into each audit chain.

    Only signatures that outsiders saw by then still count. Replaces the key if it is current.
    Session and chains as for `rotate`. Raises `NotFound` and `Conflict`.
    """
    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    row = session.get(SigningKeyRow, key_id)
    now = database_now(session)
    if row is None:
        raise NotFound(f"There is no signing key {key_id}: see `app.manage signing-key list`.")
    if row.purpose != Purpose.BUNDLE:
        raise Conflict(f"{key_id} is the key of a log, and ends with it: `app.manage log succeed`.")
    if row.revoked_at is not None:
        raise Conflict(f"{key_id} is revoked already, since {rfc3339(row.revoked_at)}.")
    if since is not None and not row.created_at <= since <= now:
        raise Conflict(
            f"{key_id} was made at {rfc3339(row.created_at)}: since then, and not later than now."
        )
    signs = row.retired_at is None
    new = replace(session, master_keys, Purpose.BUNDLE)[1].public.id if signs else None
    row.revoked_at, row.revocation_reason = since or now, reason
    session.flush()
    details = {"revoked_at": rfc3339(row.revoked_at), "reason": reason, "successor": new}
    target = ("signing_key", key_id)
    untold = chain.append_to_all(session, "signing_key.revoke", target=target, details=details)
    if signs:
        _settle(session, key_id)
    return Replaced(key_id, new, untold)


def revoked_at(tx: Tx, key_id: str) -> datetime | None:
    """Return the moment as of which a key is revoked, or None."""
    return cursor(tx, scalar_row).execute(_REVOKED, (key_id,)).fetchone()


def _settle(session: Session, key_id: str | None) -> None:
    """Set a key's end after any signature still possible; call it last before the commit."""
    cursor(session).execute(_END, (_UNTIL_COMMITTED, key_id))


def replace(
    session: Session, master_keys: MasterKeys, purpose: Purpose
) -> tuple[str | None, SigningKey]:
    """Retire the current key of a purpose and create the next; return (old key's id, new key)."""
    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    old = session.scalars(
        select(SigningKeyRow).where(
            SigningKeyRow.purpose == purpose, SigningKeyRow.retired_at.is_(None)
        )
    ).one_or_none()
    if old is not None:
        old.retired_at = database_now(session)
        session.flush()
    return (None if old is None else old.key_id), _insert(session, master_keys, purpose)[0]


def _insert(tx: Tx, master_keys: MasterKeys, purpose: Purpose) -> tuple[SigningKey, datetime]:
    fresh = SigningKey.generate()
    sealed = master_keys.seal(fresh.seed, identity(fresh.public.id))
    values = (fresh.public.id, purpose, fresh.public.raw, sealed)
    ((created_at,),) = cursor(tx).execute(_INSERT, values).fetchall()
    return fresh, created_at


@lru_cache(maxsize=16)
def _opened(master_keys: MasterKeys, key_id: str, sealed: bytes) -> SigningKey:
    return SigningKey(master_keys.open(sealed, identity(key_id)))


def identity(key_id: str) -> str:
    """Return the identity (associated data) under which a private key is sealed."""
    return f"signing_keys/{key_id}/private"


def certificate_problems(session: Session, chains: Sequence[SigningChain]) -> list[str]:
    """Say what is wrong with certificates that a deployment is to use; nothing if they fit.

    Each is of a key that signs or signed bundles. That of the current key is valid now.
    """
    known = {row.key_id: row for row in rows(session) if row.purpose == Purpose.BUNDLE}
    now, found = database_now(session), []
    for each in chains:
        row, (begins, ends) = known.get(each.key.id), each.period
        if row is None:
            ours = ", ".join(known) or "none yet"
            found.append(
                f"SIGNING_CERTIFICATES has one of the key {each.key.id}, and the keys that sign"
                f" bundles are: {ours}"
            )
        elif row.retired_at is None and not each.covers(now):
            found.append(
                f"SIGNING_CERTIFICATES: that of the current key {each.key.id} is valid from"
                f" {rfc3339(begins)} to {rfc3339(ends)}, and not now"
            )
    return found


def jwks(session: Session, chains: Sequence[SigningChain] = ()) -> dict[str, Any]:
    """Return every public key with its dates as a JSON Web Key Set; retired ones stay.

    `x5c` has its certificates, if `chains` have any.
    """
    certificates = {each.key.id: each.x5c for each in chains}

    def when(moment: datetime | None) -> str | None:
        return None if moment is None else rfc3339(moment)

    logs = {row.key_id: row for row in session.scalars(select(LogGeneration))}
    keys = []
    for row in rows(session):
        raw = bytes(row.public_key)
        key: dict[str, Any] = {
            **PublicKey(raw).jwk,
            "purpose": row.purpose,
            "created_at": rfc3339(row.created_at),
            "retired_at": when(row.retired_at),
            "revoked_at": when(row.revoked_at),
            "revocation_reason": row.revocation_reason,
        }
        if row.key_id in certificates:
            key["x5c"] = certificates[row.key_id]
        if row.key_id in logs:
            log = logs[row.key_id]
            key["vkey"] = str(VerifierKey.ed25519(log.origin, raw))
            key["prefix"] = f"/v1/log/{log.generation}"
        keys.append(key)
    return {"keys": keys}
