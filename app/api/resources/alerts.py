"""Who is told of troubles by mail, and the mails that were sent, over HTTP."""

from typing import Any

from flask import Response
from marshmallow import ValidationError

from app.api.http.access.auth import caller, requires
from app.api.http.paging import PageArgs, page, page_schema
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import answer
from app.api.http.transactions import transaction
from app.api.resources.tenant import check_mailbox
from app.core.callers import Role
from app.core.digests import alerts
from app.core.digests.alerts import MOST_RECIPIENTS, AlertMailSchema, AlertsSchema, Policy
from app.core.digests.troubles import Kind
from app.lib.mail import mailbox
from app.schemas import fields
from app.schemas.schema import Schema

blp = Blueprint(
    "alerts",
    __name__,
    url_prefix="/v1/tenant/alerts",
    description="Mails to a tenant's operators when something fails: one in an hour at most.",
)


def _apart(emails: list[str]) -> None:
    if len({email.lower() for email in emails}) < len(emails):
        raise ValidationError("Name each address once.")


class AlertsChangeSchema(Schema):
    """Who is to be told, and of what."""

    emails = fields.Items(
        fields.Text(mailbox.MAX_LENGTH, validate=check_mailbox),
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


@blp.route("", methods=["GET"], endpoint="get")
@requires(Role.READ, whole_tenant=True)
@blp.response(200, AlertsSchema)
def read() -> Response:
    """Read who is told of troubles"""
    with transaction() as session:
        return answer(alerts.represent(alerts.read(session, caller().tenant_id)))


@blp.route("", methods=["PUT"], endpoint="set")
@requires(Role.ADMIN, whole_tenant=True)
@blp.arguments(AlertsChangeSchema)
@blp.response(200, AlertsSchema)
def change(body: dict[str, Any]) -> Response:
    """Set who is told of troubles

    A trouble is told once, when it begins: a webhook that fails for five minutes, refuses what is
    sent, or is disabled; a rule with errors; a broken audit chain; a history that was rolled back.
    An address gets one mail in an hour at most, with all that began meanwhile.
    """
    with transaction() as session:
        wanted = Policy(body["emails"], body["kinds"])
        return answer(alerts.represent(alerts.change(session, caller(), wanted)))


@blp.route("/mails", methods=["GET"], endpoint="mails")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(PageArgs, location="query")
@blp.response(200, AlertMailPageSchema)
def list_mails(args: dict[str, Any]) -> Response:
    """List the mails of alerts, newest first, with what became of each"""
    with transaction() as session:
        return page(
            args,
            lambda *where: alerts.mails(session, caller().tenant_id, *where),
            alerts.represent_mail,
        )
