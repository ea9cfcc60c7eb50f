"""Tools for a receiver's owner: secrets, signatures, an endpoint check."""

from datetime import timedelta
from typing import Any

from flask import url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app import ids
from app.api.http import parsing
from app.api.http.services import caller, services, transaction
from app.api.resources.deliveries import signature_debugger
from app.api.resources.deliveries.signature_debugger import PastedSchema, diagnosis
from app.api.resources.webhook_schemas import RotationSchema
from app.api.resources.webhooks import represent, with_secret
from app.console.frame import forms, rendering
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.console.pages.deliveries.webhooks import page_of
from app.core.callers import Role
from app.core.jobs import control as job_control
from app.core.jobs import job_rows
from app.core.webhooks import receiver_check, webhooks
from app.errors import FieldError, Invalid, NotFound
from app.lib import canonical_json

blp = Pages("receivers", "/webhooks/<webhook_id>")


@blp.form("/rotate-secret", Role.ADMIN, again=page_of)
def rotate(typed: Input, webhook_id: str) -> Response:
    """Rotate the webhook's secret, and show the new one only once."""
    overlap = timedelta(seconds=typed.load(RotationSchema)["overlap_seconds"])
    given = (services().settings, ids.parse("whk", webhook_id), overlap)
    made = forms.do(webhooks.rotate_secret, *given, show=lambda made: with_secret(*made))
    does = (f"webhooks rotate {webhook_id}", f"POST /v1/webhooks/{webhook_id}/rotate-secret")
    return rendering.page("webhooks/secret", webhook=made, is_new=False, does=does)


@blp.page("/signature", Role.WRITE, methods=("GET", "POST"))
def signature(webhook_id: str) -> Response:
    """Diagnose why a receiver refuses a signature; nothing pasted is stored."""
    typed = forms.sent() if parsing.body() else forms.query()
    found: dict[str, Any] | None = None
    with signature_debugger.room(), transaction(snapshot=True) as session:
        name = _name(session, webhook_id)
        with typed.refusing():
            if typed.value("headers"):
                found = _diagnosis(session, webhook_id, typed)
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


@blp.form("/check", Role.WRITE)
def check(webhook_id: str) -> Response:
    """Begin a check of the receiver."""
    webhook = ids.parse("whk", webhook_id)
    job = forms.do(receiver_check.start, webhook, show=job_control.represent)
    place = url_for(".checked", webhook_id=webhook_id, job_id=job["id"])
    return rendering.done(place, "The check has begun.")


@blp.page("/checks/<job_id>")
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
    return found if isinstance(found, dict) else forms.header_lines(text)
