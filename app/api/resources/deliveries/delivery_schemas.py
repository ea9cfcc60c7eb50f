"""Schemas of deliveries: attempts, decisions, filters, pages, groups of failures."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from marshmallow import ValidationError
from marshmallow import fields as plain

from app import ids
from app.api.http.paging import PageArgs
from app.core.delivery.event_types import EventType
from app.core.delivery.history import failure_groups
from app.core.delivery.history.delivery_history import AttemptSchema, DeliverySchema, Status
from app.core.delivery.history.delivery_list import Group
from app.core.delivery.history.event_history import LaneState
from app.core.delivery.history.failure_groups import GROUP_EXAMPLE, OUTCOME, FailureGroupSchema
from app.lib.canonical_json import MAX_INTEGER
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema


class DecisionArgs(Schema):
    """The event to explain."""

    event_id = fields.Id("evt", required=True)


class DeliveryDetailSchema(DeliverySchema):
    """A delivery with its payload and every attempt."""

    payload = plain.Dict(allow_none=True, metadata={"description": "null: no longer stored."})
    attempts = plain.List(plain.Nested(AttemptSchema))


class LaneSchema(AnswerSchema):
    """The state of a webhook's lane; `until` is when the next probe of a paused one goes out."""

    state = fields.Choice(LaneState)
    until = fields.Time(allow_none=True)


class DecisionSchema(AnswerSchema):
    """Why a webhook did or did not get an event."""

    event_id = fields.Id("evt")
    event_type = fields.Choice(EventType)
    webhook_id = fields.Id("whk")
    decision = fields.Text(20)
    explanation = fields.Text(500)
    summary = fields.Text(
        500,
        description="Its outcome so far, the lane's state, and when it is tried next.",
        example="It has failed once (HTTP 503); attempt 2 is due at 2026-01-31T12:00:05.000000Z.",
    )
    lane = fields.Object(LaneSchema)
    deliveries = plain.List(plain.Nested(DeliverySchema))


_STATUS_CODE: dict[str, Any] = {"description": "HTTP status of the last response.", "example": 503}


class Failing(enum.StrEnum):
    """The statuses of failed deliveries: final, or to be retried."""

    FAILED = "failed"
    RETRYING = "retrying"


class Statuses(fields.Items):
    """Statuses in a query string: repeated, or in one value with commas."""

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> list[Any]:
        named = [part for text in value for part in text.split(",")]
        return super()._deserialize(named, *arguments, **options)


class CreatedArgs(Schema):
    """Filters by event type and creation time."""

    event_type = fields.Choice(EventType)
    since = fields.Time(description="Created at this moment or later.")
    until = fields.Time(description="Created before this moment.")


class AttemptArgs(Schema):
    """Filters by webhook, job and last attempt."""

    webhook_id = fields.Id("whk")
    job_id = fields.Id("job", description="The replays that a job has made.")
    outcome = fields.Text(50, metadata=OUTCOME)
    status_code = fields.QueryInteger(100, 999, metadata=_STATUS_CODE)


class FilterArgs(CreatedArgs, PageArgs):
    """Filters of every list of deliveries."""

    status = Statuses(
        fields.Choice(Status),
        min_items=1,
        max_items=len(Status),
        description="Any of these: repeat it, or separate values by commas.",
    )


class HistoryArgs(FilterArgs):
    """Filters of a webhook's deliveries; `after` selects the catch-up feed instead."""

    after = fields.QueryInteger(
        0,
        MAX_INTEGER,
        description="The last `sequence` you have (0: none). Returns the events after it, "
        "oldest first, with payloads; continue with `next_after` until `data` is empty. "
        "Only `epoch`, `lane` and `limit` can be combined with it.",
    )
    lane = fields.QueryInteger(
        1,
        ids.MOST_LANES,
        description="The lane whose feed it is, of a webhook with several; else the first.",
    )
    epoch = fields.Id(
        "epo",
        description="The epoch in which you have `after`: of the last answer, or the header "
        "`x-service-epoch` of a delivery. If it has ended, the answer is 410.",
    )


class GroupField(fields.AnyText):
    """The name of a group of failures, which may have no failures any more."""

    json_schema: Mapping[str, Any] = MappingProxyType(
        {"type": "string", "pattern": "^grp_[0-9a-f]{48}$"}
    )

    def _deserialize(self, value: Any, *arguments: Any, **options: Any) -> Any:
        found = Group.parse(super()._deserialize(value, *arguments, **options))
        if found is None:
            raise ValidationError("This is no group: send one from GET /v1/deliveries/groups.")
        return found


def group_field(**options: Any) -> GroupField:
    """Return a field that takes the name of a group."""
    description = "The deliveries of a `group` from `GET /v1/deliveries/groups`."
    return GroupField(description=description, example=GROUP_EXAMPLE, **options)


class SubjectArgs(Schema):
    """Filters by the event and its subject."""

    event_id = fields.Id("evt")
    session_id = fields.Id(
        "ses", description="Events of its completion, and of its findings (200 at most)."
    )
    record_id = fields.Id("rec", description="Events of findings about it (200 at most).")
    finding_id = fields.Id("fnd", description="The event of this finding.")


class GroupArgs(CreatedArgs, AttemptArgs, SubjectArgs):
    """Filters of the failures to group; all given must match."""

    status = Statuses(
        fields.Choice(Failing),
        min_items=1,
        max_items=len(Failing),
        description="Absent: both.",
    )


class TenantHistoryArgs(FilterArgs, AttemptArgs, SubjectArgs):
    """Filters of a tenant's deliveries; all given must match."""

    group = group_field()
    finished_since = fields.Time(description="Ended at this moment or later.")
    finished_until = fields.Time(description="Ended before this moment.")


class ListedDeliverySchema(DeliverySchema):
    """A delivery; in the catch-up feed it has its payload too."""

    optional = (*DeliverySchema.optional, "payload")

    payload = plain.Dict()


class DeliveryPageSchema(AnswerSchema):
    """One page of deliveries; the catch-up feed has `next_after` and `epoch`, and no cursor."""

    optional = ("next_after", "epoch", "lane")

    data = fields.Items(fields.Object(ListedDeliverySchema), max_items=200)
    next_cursor = fields.Text(1000, allow_none=True)
    next_after = fields.Count()
    lane = fields.Integer(1, ids.MOST_LANES)
    epoch = fields.Id("epo", description="The present one: send it with `next_after`.")


class TenantHistoryPageSchema(AnswerSchema):
    """One page of deliveries of all webhooks."""

    data = fields.Items(fields.Object(DeliverySchema), max_items=200)
    next_cursor = fields.Text(1000, allow_none=True)


class FailureGroupsSchema(AnswerSchema):
    """Groups of failures, largest first."""

    data = fields.Items(fields.Object(FailureGroupSchema), max_items=failure_groups.MOST_GROUPS)
    window = fields.Count(
        description="The largest number of failures that are grouped: the newest.",
        example=failure_groups.WINDOW,
    )
    complete = fields.Boolean(description="Whether every failure is in these groups.")
