"""Schemas of bulk replays: selection, pace, and the preview of a dry run."""

import enum
from typing import Any

from marshmallow import ValidationError
from marshmallow import fields as plain

from app import fields
from app.api.resources.deliveries.list_schemas import group_field
from app.core.delivery.event_types import EventType
from app.core.replay import replay_selection
from app.schemas import AnswerSchema, Schema

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
