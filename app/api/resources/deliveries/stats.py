"""Traffic over HTTP: of one webhook, or of all, by hour or day."""

from typing import Any
from uuid import UUID

from flask import Response
from sqlalchemy.orm import Session

from app.api.http.answers import answer
from app.api.http.auth import requires
from app.api.http.documentation import Blueprint
from app.api.http.services import caller, transaction
from app.core.callers import Role
from app.core.delivery import hours
from app.core.delivery.hours import Step
from app.core.webhooks import webhooks
from app.database import database_now
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Blueprint("stats", __name__, url_prefix="/v1", description="Traffic by hour or day.")


class StatsArgs(Schema):
    """The span of hours or days, all in UTC."""

    since = fields.Time(description="The first row contains it. Absent: 24 hours, or 30 days.")
    until = fields.Time(description="The last row begins before this moment. Absent: now.")
    step = fields.Choice(
        Step,
        load_default=Step.HOUR,
        description="The length of a row. At most 31 days by the hour, or 366 days by the day.",
        metadata={"default": "hour"},
    )


def _latency(description: str) -> fields.Integer:
    return fields.Integer(0, 15_000, allow_none=True, description=description, example=87)


class StatsRowSchema(AnswerSchema):
    """Counts and latencies of one hour or day."""

    at = fields.Time(description="When it began.")
    accepted = fields.Count(
        description="Events created, counted when they get their `sequence`: at the first attempt, "
        "or after half a minute. Tests and replays do not count.",
    )
    attempted = fields.Count(description="Attempts, tests and replays included.")
    succeeded = fields.Count(description="Deliveries that succeeded.")
    failed = fields.Count(description="Deliveries that failed for good.")
    retried = fields.Count(description="Attempts after which another follows.")
    p50_ms = _latency("Half of the attempts took no longer; null without any. Interpolated.")
    p95_ms = _latency("95 % of the attempts took no longer; null without any. Interpolated.")


class StatsSchema(AnswerSchema):
    """Hours or days, oldest first, those without traffic included."""

    data = fields.Items(fields.Object(StatsRowSchema), max_items=max(hours.MOST_ROWS.values()))


@blp.route("/stats", methods=["GET"], endpoint="tenant")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(StatsArgs, location="query")
@blp.response(200, StatsSchema)
def read_tenant(args: dict[str, Any]) -> Response:
    """Count the traffic of all webhooks, by hour or day

    By default of the last 24 hours. An attempt counts in the hour in which its outcome is recorded.
    Kept as long as the history of deliveries.
    """
    with transaction(snapshot=True) as session:
        return _answer(session, args)


@blp.route("/webhooks/<webhook_id>/stats", methods=["GET"], endpoint="webhook")
@requires(Role.READ, whole_tenant=True)
@blp.arguments(StatsArgs, location="query")
@blp.response(200, StatsSchema)
def read_webhook(args: dict[str, Any], webhook_id: UUID | None) -> Response:
    """Count the traffic of a webhook, by hour or day

    As `GET /v1/stats`; a deleted webhook's traffic is kept too.
    """
    with transaction(snapshot=True) as session:
        known = webhooks.require_history(session, caller(), webhook_id)
        return _answer(session, args, known)


def _answer(session: Session, args: dict[str, Any], webhook_id: UUID | None = None) -> Response:
    span = hours.span(database_now(session), args.get("since"), args.get("until"), args["step"])
    return answer({"data": hours.traffic(session, caller().tenant_id, span, webhook_id)})
