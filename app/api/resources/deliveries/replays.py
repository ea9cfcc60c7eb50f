"""Bulk replays over HTTP: their selection, pace and preview, of one webhook or of all."""

import enum
from typing import Any
from uuid import UUID

from flask import Response
from marshmallow import ValidationError
from marshmallow import fields as plain

from app import ids
from app.api.http.answers import answer
from app.api.http.auth import WRITE_TENANT
from app.api.http.idempotency import once, sent_key
from app.api.http.routes import Routes
from app.api.http.services import caller, transaction
from app.api.resources.deliveries.delivery_schemas import group_field
from app.core.delivery.event_types import EventType
from app.core.jobs import control as job_control
from app.core.jobs.control import JobSchema
from app.core.replay import bulk_replay, replay_selection
from app.core.replay.replay_deliveries import Pace
from app.core.replay.replay_selection import Status, Wanted
from app.errors import FieldError, Invalid
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Routes(
    "replays", __name__, url_prefix="/v1", description="Bulk replays of deliveries, as jobs."
)


FASTEST_REPLAY = 10_000
MOST_IDS = 1000
MOST_CANARY = 100


class OneOrMore(fields.Choice):
    """One value of an enumeration, or a list of them; read as a frozenset."""

    def __init__(self, choices: type[enum.StrEnum], **options: Any) -> None:
        super().__init__(choices, **options)
        one = self.json_schema
        many = {"type": "array", "items": one, "minItems": 1, "maxItems": len(choices)}
        self.json_schema = {"oneOf": [one, many]}

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> Any:
        values = value if isinstance(value, list) else [value]
        if not 1 <= len(values) <= len(self.choices):
            raise ValidationError(f"Send 1 to {len(self.choices)} values; this has {len(values)}.")
        read = super()._deserialize
        return frozenset(read(each, *arguments, **options) for each in values)


class BulkReplaySchema(Schema):
    """Deliveries to replay: `ids`, or a `group`, or all that match the other filters."""

    ids = fields.Items(
        fields.Id("dlv"),
        min_items=1,
        max_items=MOST_IDS,
        description="These deliveries; a single one is allowed.",
    )
    group = group_field()
    status = OneOrMore(
        replay_selection.Status,
        description="One or a list; absent: `failed`. `skipped`: events that happened while "
        "the webhook was disabled.",
    )
    event_type = OneOrMore(EventType, description="One or a list; absent: all.")
    since = fields.Time(description="Created at this moment or later.")
    until = fields.Time(description="Created before this moment.")
    failed_since = fields.Time(description="Ended at this moment or later.")
    failed_until = fields.Time(description="Ended before this moment.")
    rate = fields.Integer(
        1,
        FASTEST_REPLAY,
        description="At most this many a second; absent: no limit.",
        example=50,
    )
    canary = fields.Integer(
        1,
        MOST_CANARY,
        description="Send this many first, at once; if any of their attempts fails, send no "
        "more and end the job as `cancelled`.",
        example=10,
    )
    stop_after_failures = fields.Integer(
        1,
        2**31 - 1,
        description="Once this many have failed at least once, send no more and end the job "
        "as `cancelled`.",
        example=20,
    )
    as_of = fields.Time(
        description="The `as_of` that a dry run of the same request returned: replays "
        "exactly the deliveries that it counted."
    )
    dry_run = fields.Boolean(
        load_default=False, description="Only count the deliveries, send nothing."
    )


class RetryNowSchema(Schema):
    """The pace at which waiting deliveries become due."""

    rate = fields.Integer(
        1,
        FASTEST_REPLAY,
        description="At most this many a second; absent: all now.",
        example=50,
    )


class MovedSchema(AnswerSchema):
    """The number of deliveries that waited, and the job that sends them; one has no job."""

    count = fields.Count(
        description="All that waited for an attempt, the first or a later one.", example=1250
    )
    job_id = fields.Id("job", allow_none=True)


class LeftOutSchema(AnswerSchema):
    """The numbers of selected deliveries that are not replayed, by reason."""

    arrived_since = fields.Count(description="Their event was delivered since.")
    already_waiting = fields.Count(
        description="They or their replays wait for their next attempt.",
    )
    not_sending = fields.Count(description="Their webhook is disabled.")


class PreviewSchema(AnswerSchema):
    """Preview of a replay: the deliveries that it would send again."""

    count = fields.Count(example=1250)
    oldest = fields.Time(allow_none=True, description="When the first was created.")
    newest = fields.Time(allow_none=True)
    left_out = fields.Object(LeftOutSchema)
    seconds = plain.Integer(
        allow_none=True,
        metadata={
            "description": "Estimated duration: at `rate`, or at the recent speed of the slowest "
            "receiver; null: unknown.",
            "example": 25,
        },
    )
    as_of = fields.Time(description="Send it back to replay exactly these.")


def require_one_way(body: dict[str, Any]) -> tuple[str, str] | None:
    """Return the field that conflicts with the others, and why; None without a conflict."""
    how = {"rate", "canary", "stop_after_failures", "as_of", "dry_run"}
    which = [name for name in ("ids", "group") if name in body]
    others = sorted(body.keys() - how - set(which[:1]))
    if which and others:
        return others[0], f"This cannot be combined with {which[0]}."
    for since, until in (("since", "until"), ("failed_since", "failed_until")):
        if since in body and until in body and body[since] >= body[until]:
            return until, f"Send a moment after `{since}`."
    statuses = body.get("status", ())
    ended = [name for name in ("failed_since", "failed_until") if name in body]
    if ended and replay_selection.Status.SKIPPED in statuses:
        return ended[0], "What was skipped was never sent, so it has no end; use since and until."
    return None


@blp.serves(
    "POST /webhooks/<webhook_id>/replay",
    WRITE_TENANT,
    JobSchema,
    202,
    takes=BulkReplaySchema,
    also={200: PreviewSchema},
)
def replay_webhook(body: dict[str, Any], webhook_id: UUID | None) -> Response:
    """Replay deliveries of a webhook

    Selects by `ids`, by a `group` of failures, or by filters: deliveries that failed, were
    cancelled, or were skipped while the webhook was disabled. Leaves out events that were delivered
    since or already wait. A job creates the replays, which are sent after live events; its
    `progress` has their outcomes, and `GET /v1/deliveries?job_id=` lists them. With `dry_run` the
    answer is 200, and its `as_of` lets the same request replay exactly that. A disabled webhook
    answers 409.
    """
    return _replay(body, webhook_id, all_webhooks=False)


@blp.serves(
    "POST /deliveries/replay",
    WRITE_TENANT,
    JobSchema,
    202,
    takes=BulkReplaySchema,
    errors=(404,),
    also={200: PreviewSchema},
)
def replay_tenant(body: dict[str, Any]) -> Response:
    """Replay deliveries of all webhooks

    As `POST /v1/webhooks/{webhook_id}/replay`, for all webhooks. Disabled webhooks are left out,
    and counted as `not_sending`.
    """
    return _replay(body, None, all_webhooks=True)


def _replay(body: dict[str, Any], webhook: UUID | None, *, all_webhooks: bool) -> Response:
    wanted = wanted_of(body, webhook, all_webhooks=all_webhooks)
    as_of, rate = body.get("as_of"), body.get("rate")
    if body["dry_run"]:
        sent_key()
        with transaction() as session:
            found = bulk_replay.preview(
                session, caller(), webhook, wanted, as_of, all_webhooks=all_webhooks
            )
            return answer(found.represent(rate))
    pace = Pace(rate, body.get("canary"), body.get("stop_after_failures"))
    return once(
        202,
        lambda session: job_control.represent(
            bulk_replay.start(
                session, caller(), webhook, wanted, pace, as_of, all_webhooks=all_webhooks
            )
        ),
    )


def wanted_of(body: dict[str, Any], webhook: UUID | None, *, all_webhooks: bool) -> Wanted:
    """Return the selection that a body describes, of one webhook or all; raises `Invalid`."""
    group = body.get("group")
    if not all_webhooks and group is not None and ids.webhook_of(group.webhook_id) != webhook:
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
