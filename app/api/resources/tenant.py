"""The tenant's settings over HTTP."""

from typing import Any

from flask import Response
from marshmallow import ValidationError

from app.api.http.access.auth import caller, requires
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import answer
from app.api.http.services import services
from app.api.http.transactions import transaction
from app.core import tenant_settings
from app.core.callers import Role
from app.core.tenant_settings import EMAIL, SettingsSchema, Visibility
from app.lib.mail import mailbox
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint(
    "tenant", __name__, url_prefix="/v1/tenant", description="The settings of a tenant."
)


def check_mailbox(text: str) -> None:
    """Raise `ValidationError` unless the text is one plain mail address."""
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
        validate=check_mailbox,
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
