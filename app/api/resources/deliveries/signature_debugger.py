"""The signature debugger over HTTP: why a receiver refuses a delivery's signature."""

import base64
import binascii
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError
from sqlalchemy.orm import Session

from app.api.http import large_work, parsing
from app.api.http.answers import answer
from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.services import caller, services, transaction
from app.core.callers import Role
from app.core.delivery.events import MAX_PAYLOAD
from app.core.webhooks import signature_check
from app.core.webhooks.signature_check import Pasted
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Blueprint(
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


@blp.route("/<webhook_id>/verify-signature", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.arguments(PastedSchema)
@blp.response(200, DiagnosisSchema)
def verify(body: dict[str, Any], webhook_id: UUID | None) -> Response:
    """Find out why a receiver refuses a signature

    Send a request as the receiver got it, or with the signature that the receiver's code computes.
    Secret, body, signature format and timestamp are checked, and the mistake is named. Nothing of
    the request is stored or logged.
    """
    with room(), transaction() as session:
        return answer(diagnosis(session, webhook_id, body))


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
