"""The tenant's settings, who is told of its troubles, and its digests, over HTTP."""

from collections.abc import Mapping, Sequence
from typing import Any

from flask import Response
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app.api.http.auth import ADMIN_TENANT, READ_TENANT
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.routes import Routes
from app.api.http.services import caller, services, transaction
from app.core import tenant_settings
from app.core.digests import alerts, schedule, sending
from app.core.digests.alerts import MOST_RECIPIENTS, AlertMailSchema, AlertsSchema, Policy
from app.core.digests.schedule import DigestSchema, NextSchema
from app.core.digests.troubles import Kind
from app.core.tenant_settings import EMAIL, SettingsSchema, Visibility
from app.lib.mail import mailbox
from app.models import AlertMail, Digest
from app.schemas import fields
from app.schemas.schema import Schema

blp = Routes(
    "tenant",
    __name__,
    url_prefix="/v1/tenant",
    description="The settings of a tenant, and who is told of troubles.",
)


def _mailbox(text: str) -> None:
    try:
        mailbox.check(text)
    except mailbox.NotAMailbox as error:
        raise ValidationError(str(error)) from None


class SettingsChangeSchema(Schema):
    """The settings to change; those not sent stay."""

    bundle_visibility = fields.Choice(Visibility)
    bundle_retention_days = fields.Integer(
        1,
        3650,
        allow_none=True,
        description="Null: bundles are kept for ever. The operator "
        "may have set a floor (MIN_RETENTION_DAYS).",
    )
    anchoring_enabled = fields.Boolean(
        description="Whether the audit chain's head goes into the transparency log."
    )
    notification_email = fields.Text(
        mailbox.MAX_LENGTH,
        allow_none=True,
        validate=_mailbox,
        description=EMAIL,
        example="security@example.com",
    )


@blp.serves("GET /settings", READ_TENANT, SettingsSchema, endpoint="settings")
def read() -> dict[str, Any]:
    """Read the settings."""
    with transaction() as session:
        return tenant_settings.represent(tenant_settings.read(session, caller().tenant_id))


@blp.serves(
    "PATCH /settings",
    ADMIN_TENANT,
    SettingsSchema,
    takes=SettingsChangeSchema,
    endpoint="change_settings",
)
def change(body: dict[str, Any]) -> dict[str, Any]:
    """Change settings.

    Fields not sent stay. Each change is an entry of the audit chain with the old and new values;
    for the mail address it says only that it was set, changed or cleared.
    """
    with transaction() as session:
        tenant = tenant_settings.change(
            session, caller(), body, services().settings.min_retention_days
        )
        return tenant_settings.represent(tenant)


def _apart(emails: list[str]) -> None:
    if len({email.lower() for email in emails}) < len(emails):
        raise ValidationError("Name each address once.")


class AlertsChangeSchema(Schema):
    """Who is to be told, and of what."""

    emails = fields.Items(
        fields.Text(mailbox.MAX_LENGTH, validate=_mailbox),
        max_items=MOST_RECIPIENTS,
        required=True,
        validate=_apart,
        description="Each gets mails of its own, with a link that ends them. None: nobody is told.",
        example=["ops@example.com"],
    )
    kinds = fields.Items(
        fields.Choice(Kind),
        min_items=1,
        max_items=len(Kind),
        load_default=list(Kind),
        description="Of which troubles; all, unless sent.",
        example=["webhook.failing", "webhook.disabled"],
    )


@blp.serves("GET /alerts", READ_TENANT, AlertsSchema, endpoint="alerts")
def read_alerts() -> dict[str, Any]:
    """Read who is told of troubles"""
    with transaction() as session:
        return alerts.represent(alerts.read(session, caller().tenant_id))


@blp.serves(
    "PUT /alerts", ADMIN_TENANT, AlertsSchema, takes=AlertsChangeSchema, endpoint="set_alerts"
)
def change_alerts(body: dict[str, Any]) -> dict[str, Any]:
    """Set who is told of troubles

    A trouble is told once, when it begins: a webhook that fails for five minutes, refuses what is
    sent, or is disabled; a rule with errors; a broken audit chain; a history that was rolled back.
    An address gets one mail in an hour at most, with all that began meanwhile.
    """
    with transaction() as session:
        wanted = Policy(body["emails"], body["kinds"])
        return alerts.represent(alerts.change(session, caller(), wanted))


@blp.lists("/alerts/mails", READ_TENANT, AlertMailSchema, endpoint="alert_mails")
def list_alert_mails(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """List the mails of alerts, newest first, with what became of each"""
    return sending.rows(session, AlertMail, caller().tenant_id, *where)


digests = Routes(
    "digests",
    __name__,
    url_prefix="/v1/digests",
    description="The mails that list new findings: at most one in 24 hours.",
)


DigestPageSchema = page_schema(
    DigestSchema,
    next=fields.Object(
        NextSchema, allow_none=True, description="The next digest; null without an address."
    ),
)


@digests.serves("GET", READ_TENANT, DigestPageSchema, args=PageArgs, endpoint="list")
def list_digests(args: dict[str, Any]) -> Response:
    """List digests, newest first, and say when the next is due"""
    with transaction() as session:
        settle = services().settings.digest_settle
        coming = schedule.next_digest(session, caller().tenant_id, settle)
        return page(
            args,
            lambda *where: sending.rows(session, Digest, caller().tenant_id, *where),
            schedule.represent,
            beside=lambda _: {"next": coming},
        )
