"""Digest subscriptions: effects of setting, changing or clearing an address on digests."""

import secrets
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Actor
from app.core.digests.schedule import KIND
from app.core.digests.tokens import Subscription
from app.core.wakeups import ring_job
from app.database import cursor
from app.models import Tenant

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
    set_now = Subscription.of(tenant.id, tenant.notification_email, tenant.address_nonce)
    if not secrets.compare_digest(set_now.address_hash, subscription.address_hash):
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
