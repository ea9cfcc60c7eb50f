"""Webhooks over HTTP: URLs, secrets, receiver checks, accounting, and the signature debugger."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app.api.http import large_work, parsing
from app.api.http.auth import ADMIN_TENANT, READ_TENANT, WRITE_TENANT
from app.api.http.idempotency import once
from app.api.http.routes import Routes
from app.api.http.services import caller, services, transaction
from app.api.resources.webhook_schemas import (
    AccountingArgs,
    AccountingSchema,
    LaneHealthSchema,
    NewWebhookSchema,
    RotationSchema,
    WebhookChangeSchema,
    WebhookSchema,
    WebhookWithSecretSchema,
)
from app.clock import rfc3339
from app.core.delivery import accounting
from app.core.delivery.events import MAX_PAYLOAD
from app.core.jobs import control as job_control
from app.core.jobs.control import JobSchema
from app.core.webhooks import receiver_check, signature_check, webhooks
from app.core.webhooks.signature_check import Pasted
from app.core.webhooks.webhooks import Watched
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Routes("webhooks", __name__, url_prefix="/v1/webhooks", description="Where events are sent.")


def represent(watched: Watched) -> dict[str, Any]:
    """Return a webhook as `WebhookSchema` describes it, to this request's caller."""
    webhook, since = watched.webhook, watched.lane.held_since
    return WebhookSchema.of(
        webhook,
        **webhooks.shown_target(webhook, caller(), services().settings.master_keys),
        held=since is not None,
        held_since=None if since is None else rfc3339(since),
        health=LaneHealthSchema.of(watched.lane, **webhooks.health(watched)),
    )


def with_secret(watched: Watched, secret: str) -> dict[str, Any]:
    """Return a webhook as `WebhookWithSecretSchema` describes it."""
    return {**represent(watched), "secret": secret}


@blp.serves("POST", ADMIN_TENANT, WebhookWithSecretSchema, 201, takes=NewWebhookSchema)
def create(body: dict[str, Any]) -> Response:
    """Create a webhook

    Its `secret` signs every delivery and is shown only once. A tenant has at most
    100 webhooks, or what `MAX_WEBHOOKS` says.
    """
    settings = services().settings
    return once(
        201, lambda session: with_secret(*webhooks.create(session, caller(), settings, body))
    )


@blp.lists("", READ_TENANT, WebhookSchema, represent=represent)
def list_webhooks(session: Session, args: Mapping[str, Any], *where: Any) -> Sequence[Any]:
    """List webhooks, newest first"""
    return webhooks.rows(session, caller(), *where)


@blp.serves("GET /<webhook_id>", READ_TENANT, WebhookSchema)
def read(webhook_id: UUID | None) -> dict[str, Any]:
    """Read a webhook"""
    with transaction() as session:
        return represent(webhooks.find(session, caller(), webhook_id))


@blp.serves("PATCH /<webhook_id>", ADMIN_TENANT, WebhookSchema, takes=WebhookChangeSchema)
def change(body: dict[str, Any], webhook_id: UUID | None) -> dict[str, Any]:
    """Change a webhook

    Fields not sent stay. `headers` replaces all headers; another host gets none that is not sent
    anew. Disabling cancels waiting deliveries; events that happen while a webhook is disabled are
    not sent to it, unless replayed later. Enabling it, or another URL or header, ends a pause.
    `held` keeps waiting and new deliveries until it is false again.
    """
    with transaction() as session:
        settings = services().settings
        return represent(webhooks.change(session, caller(), settings, webhook_id, body))


@blp.serves("DELETE /<webhook_id>", ADMIN_TENANT, None, 204)
def delete(webhook_id: UUID | None) -> None:
    """Delete a webhook

    Its pending deliveries are cancelled; their history stays readable by id.
    """
    with transaction() as session:
        webhooks.delete(session, caller(), webhook_id)


@blp.serves(
    "POST /<webhook_id>/rotate-secret", ADMIN_TENANT, WebhookWithSecretSchema, takes=RotationSchema
)
def rotate_secret(body: dict[str, Any], webhook_id: UUID | None) -> Response:
    """Rotate a webhook's secret

    Deliveries are signed with both secrets until the overlap ends. If rotated again meanwhile, each
    older secret keeps its own end; an overlap of 0 ends them all at once.
    """
    overlap, settings = timedelta(seconds=body["overlap_seconds"]), services().settings
    return once(
        200,
        lambda session: with_secret(
            *webhooks.rotate_secret(session, caller(), settings, webhook_id, overlap)
        ),
    )


@blp.serves("POST /<webhook_id>/check", WRITE_TENANT, JobSchema, 202)
def check(webhook_id: UUID | None) -> Response:
    """Check how a receiver verifies deliveries

    A job sends it five marked events (`webhook.test` with `check`), one after the other: a genuine
    one, one with a wrong signature (`tampered`), one signed an hour ago (`stale`), and one that
    comes twice (`repeated`). It should answer 2xx to the first and to both of the last, and 4xx to
    the others. The job's `progress` has a grade for each with the reason: `ok` is null where the
    response proves nothing; `passed` is for all. The events are sent even while the webhook is
    paused or held, and are neither in its history nor in its accounting. While a check is open, its
    job is the answer; a disabled webhook answers 409.
    """
    return once(
        202,
        lambda session: job_control.represent(receiver_check.start(session, caller(), webhook_id)),
    )


@blp.serves(
    "GET /<webhook_id>/accounting",
    READ_TENANT,
    AccountingSchema,
    args=AccountingArgs,
    endpoint="accounting",
)
def read_accounting(args: dict[str, Any], webhook_id: UUID | None) -> dict[str, Any]:
    """Read a webhook's accounting

    `accepted` comes from the webhook's own counter of events, never from the other figures.
    """
    with transaction() as session:
        known = webhooks.require_history(session, caller(), webhook_id)
        return accounting.of(session, caller().tenant_id, known, **args)


signatures = Routes(
    "signatures", __name__, url_prefix="/v1/webhooks", description="Signatures of deliveries."
)

# Twice a payload: one that is indented still gets its answer.
_MOST_BODY = 2 * MAX_PAYLOAD
_MOST_HEADERS = 64 * 1024
_EXAMPLE_HEADERS = {
    "webhook-id": "evt_0192f0c1a2b37c4d8e5f60718293a4b5",
    "webhook-timestamp": "1763806451",
    "webhook-signature": "v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=",
}


class Headers(fields.JsonObject):
    """Headers by name, each one string."""

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> Any:
        headers = super()._deserialize(value, *arguments, **options)
        for name, each in value.items():
            if not isinstance(each, str):
                raise ValidationError({name: ["Send a string."]})
        return headers


class Base64(fields.Text):
    """Bytes in standard base64."""

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> Any:
        text = super()._deserialize(value, *arguments, **options)
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise ValidationError("Send standard base64, with its padding.") from None


class PastedSchema(Schema):
    """A request as the receiver got it, with `body` or `body_base64`."""

    headers = Headers(
        _MOST_HEADERS,
        required=True,
        description="By name, in any case; headers without a part in the signature are ignored.",
        example=_EXAMPLE_HEADERS,
        metadata={"additionalProperties": {"type": "string"}},
    )
    body = fields.Text(_MOST_BODY, min_length=0, description="The raw body, as text.")
    body_base64 = Base64(
        _MOST_BODY * 4 // 3 + 4,
        min_length=0,
        description="The raw body in base64, for a body that is not exact as text.",
    )
    received_at = fields.Time(
        description="When the receiver got it, by its own clock; absent: now."
    )

    def check(self, sent: Mapping[str, Any]) -> None:
        """Require exactly one of `body` and `body_base64`."""
        if ("body" in sent) == ("body_base64" in sent):
            raise ValidationError("Send body or body_base64.", "body")


class CheckSchema(AnswerSchema):
    """A check: whether it passes (null: it could not be made), and its result in words."""

    name = fields.Text(20, description="`headers`, `timestamp`, `secret`, `body` or `encoding`.")
    ok = fields.Boolean(allow_none=True)
    detail = fields.Text(2000)


class DiagnosisSchema(AnswerSchema):
    """Diagnosis of a request's signature."""

    valid = fields.Boolean(description="Whether a receiver should accept it: every check passes.")
    checks = fields.Items(fields.Object(CheckSchema), max_items=5)
    advice = fields.Text(
        2000,
        example="The same JSON, parsed and written anew: it differs from byte 6 on, and has 310 "
        "bytes of 284 sent. Verify the raw bytes of the request, before anything parses or "
        "changes them.",
    )


@signatures.serves(
    "POST /<webhook_id>/verify-signature", WRITE_TENANT, DiagnosisSchema, takes=PastedSchema
)
def verify(body: dict[str, Any], webhook_id: UUID | None) -> dict[str, Any]:
    """Find out why a receiver refuses a signature

    Send a request as the receiver got it, or with the signature that the receiver's code computes.
    Secret, body, signature format and timestamp are checked, and the mistake is named. Nothing of
    the request is stored or logged.
    """
    with room(), transaction() as session:
        return diagnosis(session, webhook_id, body)


def room() -> AbstractContextManager[None]:
    """Hold a place in the bulkhead for a diagnosis that takes long.

    A body is written anew in eight ways: a quarter of what is large elsewhere is large here.
    """
    return large_work.room_for(4 * len(parsing.body()), caller().tenant_id)


def diagnosis(session: Session, webhook_id: UUID | None, body: dict[str, Any]) -> dict[str, Any]:
    """Return `DiagnosisSchema` for a request that `PastedSchema` has loaded."""
    raw = body["body_base64"] if "body_base64" in body else body["body"].encode()
    pasted = Pasted(body["headers"], raw, body.get("received_at"))
    return signature_check.check(session, caller(), services().settings, webhook_id, pasted)
