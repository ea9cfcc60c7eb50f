"""Digest subscriptions: an address that is set, changed or cleared, and the token of its mails.

The unsubscribe token clears the address, without a key. It is sealed under `MASTER_KEYS`, and has
no effect once the address is set again. It does not expire: people look for it in old mails.
"""

import base64
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Actor
from app.core.digests.schedule import KIND
from app.core.wakeups import ring_job
from app.database import cursor
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.models import Tenant

_IDENTITY = "digests/unsubscribe"
_ID_BYTES = 16
_LONGEST = 200


class Subscription(NamedTuple):
    """One setting of a tenant's address: the database makes a nonce each time it is set."""

    tenant_id: UUID
    nonce: UUID


def write_token(master_keys: MasterKeys, subscription: Subscription) -> str:
    """Return a token of letters, digits, `-` and `_`, different each time."""
    plain = subscription.tenant_id.bytes + subscription.nonce.bytes
    return base64.urlsafe_b64encode(master_keys.seal(plain, _IDENTITY)).rstrip(b"=").decode()


def read_token(master_keys: MasterKeys, token: str) -> Subscription | None:
    """Return the subscription that a token names; None for any other text."""
    if len(token) > _LONGEST or not token.isascii():
        return None
    try:
        sealed = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        plain = master_keys.open(sealed, _IDENTITY)
    except (ValueError, CannotOpen):
        return None
    return Subscription(UUID(bytes=plain[:_ID_BYTES]), UUID(bytes=plain[_ID_BYTES:]))


# The holder of a link from a mail.
_HOLDER = Actor("link", "digest.unsubscribe")

_CANCEL = """
UPDATE digests SET status = 'cancelled', error = 'The address was cleared.'
 WHERE tenant_id = %s AND status = 'pending'
"""
_HURRY = """
UPDATE jobs SET run_at = clock_timestamp(), ring_at = clock_timestamp()
 WHERE tenant_id = %s AND kind = %s AND finished_at IS NULL AND locked_until IS NULL
   AND run_at > clock_timestamp()
RETURNING id
"""


def follow(session: Session, tenant_id: UUID, address: str | None) -> None:
    """Apply the tenant's new address to open digests, in the transaction that sets it.

    Clearing it cancels pending digests; a mail in flight may still arrive. A change makes a digest
    due at once that waits because the server refused the previous address.
    """
    cur = cursor(session)
    if address is None:
        cur.execute(_CANCEL, (tenant_id,))
    for (job_id,) in cur.execute(_HURRY, (tenant_id, KIND)).fetchall():
        ring_job(session, tenant_id, job_id)


def clear(session: Session, subscription: Subscription, request_id: str) -> bool:
    """Clear a tenant's address if it is still the subscription's; say whether it was.

    The audit entry's actor is the holder of a mail's link: the person is unknown.
    """
    locked = select(Tenant).where(Tenant.id == subscription.tenant_id)
    tenant = session.scalars(locked.with_for_update(key_share=True)).one_or_none()
    if tenant is None or tenant.notification_email is None:
        return False
    if tenant.address_nonce != subscription.nonce:
        return False
    tenant.notification_email = None
    session.flush()
    follow(session, tenant.id, None)
    chain.append(
        session,
        tenant.id,
        _HOLDER,
        "digest.unsubscribe",
        target=("tenant", ids.text("ten", tenant.id)),
        details={"notification_email": {"change": "cleared"}},
        request_id=request_id,
    )
    return True
