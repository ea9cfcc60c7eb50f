"""The tenant's settings, who is told of its troubles, and its digests, over HTTP."""

from typing import Any

from flask import Response
from marshmallow import ValidationError

from app.api.http.answers import answer
from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.services import caller, services, transaction
from app.core import tenant_settings
from app.core.callers import Role
from app.core.digests import alerts, schedule, sending
from app.core.digests.alerts import MOST_RECIPIENTS, AlertMailSchema, AlertsSchema, Policy
from app.core.digests.schedule import DigestSchema, NextSchema
from app.core.digests.troubles import Kind
from app.core.tenant_settings import EMAIL, SettingsSchema, Visibility
from app.lib.mail import mailbox
from app.models import AlertMail, Digest
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint(
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


@blp.route("/settings", methods=["GET"], endpoint="settings")
@requires(Role.READ, whole_tenant=True)
@blp.response(200, SettingsSchema)
def read() -> Response:
    """Read the settings."""
    with transaction() as session:
        tenant = tenant_settings.read(session, caller().tenant_id)
        return answer(tenant_settings.represent(tenant))


@blp.route("/settings", methods=["PATCH"], endpoint="change_settings")
@requires(Role.ADMIN, whole_tenant=True)
@blp.arguments(SettingsChangeSchema)
@blp.response(200, SettingsSchema)
def change(body: dict[str, Any]) -> Response:
    """Change settings.

    Fields not sent stay. Each change is an entry of the audit chain with the old and new values;
    for the mail address it says only that it was set, changed or cleared.
    """
    with transaction() as session:
        tenant = tenant_settings.change(
            session, caller(), body, services().settings.min_retention_days
        )
        return answer(tenant_settings.represent(tenant))


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


AlertMailPageSchema = page_schema(AlertMailSchema)


@blp.route("/alerts", methods=["GET"], endpoint="alerts")
@requires(Role.READ, whole_tenant=True)
@blp.response(200, AlertsSchema)
def read_alerts() -> Response:
    """Read who is told of troubles"""
    with transaction() as session:
        return answer(alerts.represent(alerts.read(session, caller().tenant_id)))


@blp.route("/alerts", methods=["PUT"], endpoint="set_alerts")
@requires(Role.ADMIN, whole_tenant=True)
@blp.arguments(AlertsChangeSchema)
@blp.response(200, AlertsSchema)
def change_alerts(body: dict[str, Any]) -> Response:
    """Set who is told of troubles

    A trouble is told once, when it begins: a webhook that fails for five minutes, refuses what is
    sent, or is disabled; a rule with errors; a broken audit chain; a history that was rolled back.
    An address gets one mail in an hour at most, with all that began meanwhile.
    """
    with transaction() as session:
        wanted = Policy(body["emails"], body["kinds"])
        return answer(alerts.represent(alerts.change(session, caller(), wanted)))


@blp.route("/alerts/mails", methods=["GET"], endpoint="alert_mails")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(PageArgs, location="query")
@blp.response(200, AlertMailPageSchema)
def list_alert_mails(args: dict[str, Any]) -> Response:
    """List the mails of alerts, newest first, with what became of each"""
    with transaction() as session:
        return page(
            args,
            lambda *where: sending.rows(session, AlertMail, caller().tenant_id, *where),
            alerts.represent_mail,
        )


digests = Blueprint(
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


@digests.route("", methods=["GET"], endpoint="list")
@requires(Role.READ, whole_tenant=True)
@digests.arguments(PageArgs, location="query")
@digests.response(200, DigestPageSchema)
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
