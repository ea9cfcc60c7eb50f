"""Tools for a receiver's owner: secrets, signatures, an endpoint check."""

from datetime import timedelta
from typing import Any

from flask import Blueprint, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http import parsing
from app.api.http.services import caller, services, transaction
from app.api.resources.webhook_schemas import RotationSchema
from app.api.resources.webhooks import PastedSchema, diagnosis, represent, room, with_secret
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.console.pages.deliveries.webhooks import page_of
from app.core.callers import Role
from app.core.jobs import control as job_control
from app.core.jobs import job_rows
from app.core.webhooks import receiver_check, webhooks
from app.errors import FieldError, Invalid, NotFound
from app.lib import canonical_json

blp = Blueprint("receivers", __name__, url_prefix="/webhooks/<webhook_id>")


@blp.post("/rotate-secret")
@signed_in(Role.ADMIN, whole_tenant=True)
def rotate(webhook_id: str) -> Response:
    """Rotate the webhook's secret, and show the new one only once."""
    typed = forms.sent()
    webhook = ids.parse("whk", webhook_id)
    try:
        overlap = timedelta(seconds=typed.load(RotationSchema)["overlap_seconds"])
        settings = services().settings
        made = forms.once(
            lambda session: with_secret(
                *webhooks.rotate_secret(session, caller(), settings, webhook, overlap)
            )
        )
    except Invalid as wrong:
        return page_of(webhook_id, typed.refused(wrong), 422)
    does = (f"webhooks rotate {webhook_id}", f"POST /v1/webhooks/{webhook_id}/rotate-secret")
    return rendering.page("webhooks/secret", webhook=made, is_new=False, does=does)


@blp.route("/signature", methods=["GET", "POST"])
@signed_in(Role.WRITE, whole_tenant=True)
def signature(webhook_id: str) -> Response:
    """Diagnose why a receiver refuses a signature; nothing pasted is stored."""
    typed = forms.sent() if parsing.body() else forms.query()
    found: dict[str, Any] | None = None
    with room(), transaction(snapshot=True) as session:
        name = _name(session, webhook_id)
        try:
            if typed.value("headers"):
                found = _diagnosis(session, webhook_id, typed)
        except Invalid as wrong:
            typed = typed.refused(wrong)
    return rendering.page(
        "webhooks/signature",
        422 if typed.errors else 200,
        typed=typed,
        found=found,
        webhook_id=webhook_id,
        name=name,
        does=(
            f"webhooks verify {webhook_id} FILE",
            f"POST /v1/webhooks/{webhook_id}/verify-signature",
        ),
    )


@blp.post("/check")
@signed_in(Role.WRITE, whole_tenant=True)
def check(webhook_id: str) -> Response:
    """Begin a check of the receiver."""
    webhook = ids.parse("whk", webhook_id)
    job = forms.once(
        lambda session: job_control.represent(receiver_check.start(session, caller(), webhook))
    )
    place = url_for(".checked", webhook_id=webhook_id, job_id=job["id"])
    return rendering.done(place, "The check has begun.")


@blp.get("/checks/<job_id>")
@signed_in(Role.READ, whole_tenant=True)
def checked(webhook_id: str, job_id: str) -> Response:
    """Show the results of a receiver check."""
    with transaction() as session:
        name = _name(session, webhook_id)
        found = job_rows.get(session, caller().tenant_id, ids.parse("job", job_id))
    job = job_control.represent(found)
    if job["kind"] != receiver_check.KIND or job["args"]["webhook_id"] != webhook_id:
        raise NotFound("There is no check of this webhook with this id.")
    return rendering.page(
        "webhooks/check",
        job=job,
        webhook_id=webhook_id,
        name=name,
        watched=job["finished_at"] is None,
        does=(f"jobs show {job_id}", f"GET /v1/jobs/{job_id}"),
    )


def _name(session: Session, webhook_id: str) -> str:
    found = webhooks.find(session, caller(), ids.parse("whk", webhook_id))
    told = represent(found)
    return str(told["description"] or told["url"])


def _diagnosis(session: Session, webhook_id: str, typed: Input) -> dict[str, Any]:
    sent: dict[str, Any] = {"headers": _headers(typed.value("headers"))}
    if typed.value("body_base64"):
        sent["body_base64"] = "".join(typed.value("body_base64").split())
    else:
        # A browser sends each line break as CR LF.
        sent["body"] = typed.value("body").replace("\r\n", "\n")
    webhook = ids.parse("whk", webhook_id)
    return diagnosis(session, webhook, parsing.load(PastedSchema(), sent))


def _headers(text: str) -> dict[str, Any]:
    """Read headers as they are pasted: a JSON object, or lines of `name: value`."""
    try:
        found = canonical_json.parse(text.encode())
    except canonical_json.NotJSON:
        found = None
    except canonical_json.NotIJSON as error:
        raise Invalid(FieldError("/headers", error.detail)) from None
    if isinstance(found, dict):
        return found
    pairs = [line.partition(":") for line in text.splitlines() if line.strip()]
    if not all(colon and name.strip() for name, colon, _ in pairs):
        raise Invalid(FieldError("/headers", "Write each header on a line: name: value."))
    return {name.strip(): value.strip() for name, _, value in pairs}
