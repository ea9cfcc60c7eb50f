"""The service's signing keys: one current for bundles and packs, one for the log, all kept.

A private key lives sealed in the database, so every process signs with the same one and a restored
dump still verifies. A retired key signs nothing and stays: what it signed must verify for ever.
"""

import enum
from collections.abc import Sequence
from functools import lru_cache

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from app.core.audit import chain
from app.core.callers import OPERATOR
from app.database import Tx, cursor, database_now
from app.lib.sealing import MasterKeys
from app.lib.signing import PublicKey, SigningKey
from app.models import SigningKey as SigningKeyRow
from app.models import Tenant

# Any number does, as long as nobody else uses it for another lock in this database.
_LOCK = 7_264_301_560


class Purpose(enum.StrEnum):
    """What a key signs; none signs two kinds of things."""

    BUNDLE = "bundle"
    LOG = "log"


_CURRENT = """
SELECT key_id, sealed_private_key FROM signing_keys WHERE purpose = %s AND retired_at IS NULL
"""

_SEALED = "SELECT sealed_private_key FROM signing_keys WHERE key_id = %s"


def current(tx: Tx, master_keys: MasterKeys, purpose: Purpose) -> SigningKey:
    """Return the key that signs now; the first who asks makes it."""
    found = cursor(tx).execute(_CURRENT, (purpose,)).fetchone()
    return _make(tx, master_keys, purpose) if found is None else _opened(master_keys, *found)


def current_id(tx: Tx, master_keys: MasterKeys, purpose: Purpose) -> str:
    """Return the id of the key that signs now, which is not opened; the first who asks makes it."""
    found = cursor(tx).execute(_CURRENT, (purpose,)).fetchone()
    return _make(tx, master_keys, purpose).public.id if found is None else str(found[0])


def rows(session: Session) -> Sequence[SigningKeyRow]:
    """Return every key there ever was, oldest first."""
    return session.scalars(select(SigningKeyRow).order_by(SigningKeyRow.created_at)).all()


def public_key(session: Session, key_id: str) -> PublicKey:
    """Return the public half of a key, whether it signs still or is retired."""
    raw = session.scalars(
        select(SigningKeyRow.public_key).where(SigningKeyRow.key_id == key_id)
    ).one()
    return PublicKey(raw)


def opened(tx: Tx, master_keys: MasterKeys, key_id: str) -> SigningKey:
    """Return a key by its id, current or retired, as MASTER_KEYS open it.

    Its public half is certain: that in the table could be anybody's. Raises LookupError without
    such a key, `CannotOpen` for one that was not sealed here.
    """
    row = cursor(tx).execute(_SEALED, (key_id,)).fetchone()
    if row is None:
        raise LookupError(f"There is no key {key_id}.")
    return _opened(master_keys, key_id, bytes(row[0]))


def rotate(session: Session, master_keys: MasterKeys) -> tuple[str | None, str]:
    """Retire the key that signs bundles and make the next; return both ids, the old one first.

    Needs a session that sees every tenant: each has the rotation in its chain. The log's key is not
    rotated: it is the log's identity, and ends with it (`app/core/log/succession.py`).
    """
    old, new = replace(session, master_keys, Purpose.BUNDLE)
    for tenant_id in session.scalars(select(Tenant.id).order_by(Tenant.id)).all():
        chain.append(
            session,
            tenant_id,
            OPERATOR,
            "signing_key.rotate",
            target=("signing_key", new.public.id),
            details={"retired": old},
        )
    return old, new.public.id


def replace(
    session: Session, master_keys: MasterKeys, purpose: Purpose
) -> tuple[str | None, SigningKey]:
    """Retire the current key of a purpose and make the next; return the old one's id, and it."""
    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    old = session.scalars(
        select(SigningKeyRow).where(
            SigningKeyRow.purpose == purpose, SigningKeyRow.retired_at.is_(None)
        )
    ).one_or_none()
    if old is not None:
        old.retired_at = database_now(session)
        session.flush()
    return (None if old is None else old.key_id), _insert(session, master_keys, purpose)


def _make(tx: Tx, master_keys: MasterKeys, purpose: Purpose) -> SigningKey:
    """Make the first key of a purpose; of several at once the first makes it for all."""
    cur = cursor(tx)
    cur.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    found = cur.execute(_CURRENT, (purpose,)).fetchone()
    return _insert(tx, master_keys, purpose) if found is None else _opened(master_keys, *found)


def _insert(tx: Tx, master_keys: MasterKeys, purpose: Purpose) -> SigningKey:
    fresh = SigningKey.generate()
    sealed = master_keys.seal(fresh.seed, identity(fresh.public.id))
    cursor(tx).execute(
        "INSERT INTO signing_keys (key_id, purpose, public_key, sealed_private_key)"
        " VALUES (%s, %s, %s, %s)",
        (fresh.public.id, purpose, fresh.public.raw, sealed),
    )
    return fresh


@lru_cache(maxsize=16)
def _opened(master_keys: MasterKeys, key_id: str, sealed: bytes) -> SigningKey:
    return SigningKey(master_keys.open(sealed, identity(key_id)))


def identity(key_id: str) -> str:
    """Name the place of a private key, for which it is sealed."""
    return f"signing_keys/{key_id}/private"
