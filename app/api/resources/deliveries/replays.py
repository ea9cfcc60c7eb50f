"""Bulk replays over HTTP: of one webhook, or of all."""

from typing import Any
from uuid import UUID

from flask import Response

from app import ids
from app.api.http.access.auth import caller, requires
from app.api.http.idempotency import once, sent_key
from app.api.http.requests.parsing import Blueprint
from app.api.http.responses.answers import answer
from app.api.http.transactions import transaction
from app.api.resources.deliveries.replay_schemas import (
    BulkReplaySchema,
    PreviewSchema,
    require_one_way,
)
from app.core.callers import Role
from app.core.jobs import control as job_control
from app.core.jobs.control import JobSchema
from app.core.replay import bulk_replay
from app.core.replay.replay_plan import Pace
from app.core.replay.replay_selection import Status, Wanted
from app.errors import FieldError, Invalid

blp = Blueprint(
    "replays", __name__, url_prefix="/v1", description="Bulk replays of deliveries, as jobs."
)


@blp.route("/webhooks/<webhook_id>/replay", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.arguments(BulkReplaySchema)
@blp.response(202, JobSchema)
@blp.alt_response(200, schema=PreviewSchema)
def replay_webhook(body: dict[str, Any], webhook_id: str) -> Response:
    """Replay deliveries of a webhook

    Selects by `ids`, by a `group` of failures, or by filters: deliveries that failed, were
    cancelled, or were skipped while the webhook was disabled. Leaves out events that were delivered
    since or already wait. A job creates the replays, which are sent after live events; its
    `progress` has their outcomes, and `GET /v1/deliveries?job_id=` lists them. With `dry_run` the
    answer is 200, and its `as_of` lets the same request replay exactly that. A disabled webhook
    answers 409.
    """
    return _replay(body, ids.parse("whk", webhook_id), all_webhooks=False)


@blp.route("/deliveries/replay", methods=["POST"])
@requires(Role.WRITE, whole_tenant=True)
@blp.arguments(BulkReplaySchema)
@blp.response(202, JobSchema)
@blp.alt_response(200, schema=PreviewSchema)
@blp.alt_response(404, "NOT_FOUND")
def replay_tenant(body: dict[str, Any]) -> Response:
    """Replay deliveries of all webhooks

    As `POST /v1/webhooks/{webhook_id}/replay`, for all webhooks. Disabled webhooks are left out,
    and counted as `not_sending`.
    """
    return _replay(body, None, all_webhooks=True)


def _replay(body: dict[str, Any], webhook: UUID | None, *, all_webhooks: bool) -> Response:
    wanted = wanted_of(body, webhook, all_webhooks=all_webhooks)
    as_of, rate = body.get("as_of"), body.get("rate")
    with transaction() as session:
        if body["dry_run"]:
            sent_key()
            found = bulk_replay.preview(
                session, caller(), webhook, wanted, as_of, all_webhooks=all_webhooks
            )
            return answer(found.represent(rate))
        pace = Pace(rate, body.get("canary"), body.get("stop_after_failures"))
        return once(
            session,
            202,
            lambda: job_control.represent(
                bulk_replay.start(
                    session, caller(), webhook, wanted, pace, as_of, all_webhooks=all_webhooks
                )
            ),
        )


def wanted_of(body: dict[str, Any], webhook: UUID | None, *, all_webhooks: bool) -> Wanted:
    """Return the selection that a body describes, of one webhook or all; raises `Invalid`."""
    group = body.get("group")
    if not all_webhooks and group is not None and group.webhook_id != webhook:
        raise Invalid(FieldError("/group", "This is no group of this webhook."))
    if problem := require_one_way(body):
        raise Invalid(FieldError(f"/{problem[0]}", problem[1]))
    if "ids" in body:
        return Wanted(ids=tuple(body["ids"]))
    moments = ("since", "until", "failed_since", "failed_until")
    return Wanted(
        body.get("status", frozenset({Status.FAILED})),
        **{name: body.get(name) for name in moments},
        event_types=body.get("event_type", frozenset()),
        group=group,
    )
