"""The four settings of a tenant; each change is an entry of its audit chain."""

import enum
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller
from app.core.digests import schedule
from app.core.records import retention
from app.errors import FieldError, Invalid
from app.lib.mail import mailbox
from app.models import Tenant
from app.schemas import fields
from app.schemas.schema import AnswerSchema

EMAIL = "The address of the digest, one plain ASCII address. Null: no digest is sent."


class Visibility(enum.StrEnum):
    """Visibility of a record's bundle."""

    PUBLIC = "public"
    PRIVATE = "private"


class SettingsSchema(AnswerSchema):
    """All settings of a tenant."""

    bundle_visibility = fields.Choice(Visibility)
    bundle_retention_days = fields.Integer(1, 3650, allow_none=True)
    anchoring_enabled = fields.Boolean()
    notification_email = fields.Text(mailbox.MAX_LENGTH, allow_none=True, description=EMAIL)


represent = SettingsSchema.of


def read(session: Session, tenant_id: UUID) -> Tenant:
    """Return the tenant, whose row holds the settings."""
    return session.scalars(select(Tenant).where(Tenant.id == tenant_id)).one()


def change(
    session: Session, caller: Caller, wanted: Mapping[str, Any], least_days: int = 1
) -> Tenant:
    """Set the settings in `wanted` and leave the rest; return the tenant.

    Values must be valid for their columns. A change to the same value leaves no audit entry. Raises
    `Invalid` for fewer days of retention than `least_days`, the operator's floor; a tenant that had
    fewer before keeps them until it changes them.
    """
    # The row stays locked until the commit, so the entry's old values are those replaced.
    locked = select(Tenant).where(Tenant.id == caller.tenant_id).with_for_update(key_share=True)
    tenant = session.scalars(locked).one()
    before = represent(tenant)
    changed = {name: value for name, value in wanted.items() if value != before[name]}
    if not changed:
        return tenant
    check_floor(changed, least_days)
    if "bundle_retention_days" in changed:
        retention.settle(session, tenant.id)
    for name, value in changed.items():
        setattr(tenant, name, value)
    session.flush()
    if "notification_email" in changed:
        schedule.follow(session, tenant.id, tenant.notification_email)
    target = ("tenant", ids.text("ten", tenant.id))
    details = {name: _change(name, before[name], value) for name, value in changed.items()}
    chain.append_by(session, caller, "settings.update", target=target, details=details)
    return tenant


def check_floor(changed: Mapping[str, Any], least_days: int) -> None:
    """Raise `Invalid` if a change keeps bundles for fewer days than the operator's floor."""
    days = changed.get("bundle_retention_days")
    if days is not None and days < least_days:
        text = f"The operator of this service keeps bundles for at least {least_days} days."
        raise Invalid(FieldError("/bundle_retention_days", text))


def _change(name: str, old: Any, new: Any) -> dict[str, Any]:
    """Return the audit details of one change: of the address only that it changed."""
    if name != "notification_email":
        return {"old": old, "new": new}
    if new is None:
        return {"change": "cleared"}
    return {"change": "set" if old is None else "changed"}
