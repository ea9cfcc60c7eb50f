"""Deliveries over HTTP, of one webhook or of all: history, traffic, feed, tests, single replays."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from flask import Response, request
from sqlalchemy.orm import Session

from app import ids
from app.api.http.answers import answer
from app.api.http.auth import READ_TENANT, WRITE_TENANT
from app.api.http.idempotency import once
from app.api.http.paging import filters, page
from app.api.http.routes import Routes
from app.api.http.services import caller, services, transaction
from app.api.resources.deliveries.delivery_schemas import (
    DecisionArgs,
    DecisionSchema,
    DeliveryDetailSchema,
    DeliveryPageSchema,
    FailureGroupsSchema,
    GroupArgs,
    HistoryArgs,
    TenantHistoryArgs,
    TenantHistoryPageSchema,
)
from app.api.resources.deliveries.replays import MovedSchema, RetryNowSchema
from app.core.delivery import hours
from app.core.delivery.history import (
    catch_up,
    delivery_history,
    delivery_list,
    event_history,
    failure_groups,
)
from app.core.delivery.history.delivery_history import DeliverySchema, Status
from app.core.delivery.history.delivery_list import Filters
from app.core.delivery.hours import Step
from app.core.delivery.lanes import lanes
from app.core.replay import replay, send_now
from app.core.webhooks import webhooks
from app.database import database_now
from app.errors import FieldError, Invalid
from app.schemas import fields
from app.schemas.schema import AnswerSchema, Schema

blp = Routes(
    "deliveries",
    __name__,
    url_prefix="/v1",
    description="Deliveries of a webhook, or of all: history, groups of failures, catch-up feed, "
    "tests, retries and replays.",
)


@blp.serves(
    "GET /webhooks/<webhook_id>/deliveries",
    READ_TENANT,
    DeliveryPageSchema,
    args=HistoryArgs,
    errors=(410,),
    endpoint="list",
)
def list_deliveries(args: dict[str, Any], webhook_id: UUID | None) -> Response:
    """List a webhook's deliveries, newest first, or catch up after a sequence number

    The list contains replays and tests, the feed does not. With `after` older than the history kept
    the answer is 410 with `first_available`; with a number of an `epoch` that has ended, as after a
    failover that lost something, 410 `history-rolled-back` with the `epoch` and `next_after` to go
    on with. A page of the feed may hold fewer than `limit` events.
    """
    return _history(args, webhook_id) if "after" not in args else _feed(args, webhook_id)


@blp.serves(
    "GET /webhooks/<webhook_id>/deliveries/<delivery_id>",
    READ_TENANT,
    DeliveryDetailSchema,
)
def read(webhook_id: UUID | None, delivery_id: UUID | None) -> dict[str, Any]:
    """Read a delivery with its payload and every attempt"""
    with transaction(snapshot=True) as session:
        tenant_id = caller().tenant_id
        known = webhooks.require_history(session, caller(), webhook_id)
        found = delivery_history.find(session, tenant_id, known, delivery_id)
        return delivery_history.describe(session, tenant_id, found)


@blp.serves(
    "GET /webhooks/<webhook_id>/decisions",
    READ_TENANT,
    DecisionSchema,
    args=DecisionArgs,
)
def decisions(args: dict[str, Any], webhook_id: UUID | None) -> dict[str, Any]:
    """Explain why a webhook did or did not get an event"""
    with transaction(snapshot=True) as session:
        known = webhooks.require_history(session, caller(), webhook_id)
        event = event_history.find(session, caller(), args["event_id"])
        return event_history.decision_for(session, event, known)


@blp.serves("POST /webhooks/<webhook_id>/test", WRITE_TENANT, DeliverySchema, 202)
def test(webhook_id: UUID | None) -> Response:
    """Send a test event to a webhook

    It is sent regardless of `event_types`, before all other deliveries, and even while the webhook
    is paused. A disabled webhook answers 409.
    """
    return once(
        202,
        lambda session: delivery_history.represent(replay.fire_test(session, caller(), webhook_id)),
    )


@blp.serves(
    "POST /webhooks/<webhook_id>/deliveries/<delivery_id>/replay", WRITE_TENANT, DeliverySchema, 202
)
def replay_one(webhook_id: UUID | None, delivery_id: UUID | None) -> Response:
    """Replay a delivery at once

    Creates a new delivery (`replay_of`) of the same event, sent even while the webhook is paused. A
    disabled webhook answers 409.
    """
    return once(
        202,
        lambda session: delivery_history.represent(
            replay.replay(session, caller(), webhook_id, delivery_id)
        ),
    )


@blp.serves(
    "POST /webhooks/<webhook_id>/retry-now", WRITE_TENANT, MovedSchema, 202, takes=RetryNowSchema
)
def retry_now(body: dict[str, Any], webhook_id: UUID | None) -> Response:
    """Send all waiting deliveries of a webhook now

    After an outage deliveries wait up to 24 hours for their next attempt, and on a paused webhook
    for its probe. They become due now, without using up their retry schedule. A pause ends, with
    one of them as its probe. A job does so, and its `progress` tells what became of them; an open
    one of this webhook ends. A disabled or held webhook answers 409.
    """
    return once(
        202, lambda session: send_now.all_of(session, caller(), webhook_id, body.get("rate"))
    )


@blp.serves(
    "POST /webhooks/<webhook_id>/deliveries/<delivery_id>/retry-now", WRITE_TENANT, MovedSchema, 202
)
def retry_one_now(webhook_id: UUID | None, delivery_id: UUID | None) -> Response:
    """Send one waiting delivery now

    It is sent even while the webhook is paused or held. A delivery that waits for no attempt, and a
    disabled webhook, answer 409.
    """

    def bring_forward(session: Session) -> dict[str, Any]:
        send_now.one(session, caller(), webhook_id, delivery_id)
        return {"count": 1, "job_id": None}

    return once(202, bring_forward)


def _history(args: dict[str, Any], webhook_id: UUID | None) -> Response:
    for name in sorted({"lane", "epoch"} & args.keys()):
        raise Invalid(FieldError(f"/{name}", "Query parameter: this goes with after."))
    with transaction(snapshot=True) as session:
        known = webhooks.require_history(session, caller(), webhook_id)
        wanted = Filters(
            frozenset(args.get("status", ())),
            args.get("event_type"),
            args.get("since"),
            args.get("until"),
            webhook_id=known,
        )
        return page(
            args,
            lambda before, limit: delivery_list.page(
                session, caller().tenant_id, wanted, before=before, limit=limit
            ),
            delivery_history.represent,
        )


def _feed(args: dict[str, Any], webhook_id: UUID | None) -> Response:
    others = sorted(args.keys() - {"after", "epoch", "lane", "limit"})
    if others:
        text = "Query parameter: this cannot be combined with after."
        raise Invalid(*(FieldError(f"/{name}", text) for name in others))
    with transaction() as session:
        known = webhooks.require_history(session, caller(), webhook_id)
        lane = ids.lane_of(known, args.get("lane", 1))
        if lane not in lanes.of_webhook(session, caller().tenant_id, known):
            raise Invalid(FieldError("/lane", "Query parameter: this webhook has no such lane."))
        entries, epoch = catch_up.after(
            session,
            caller().tenant_id,
            lane,
            args["after"],
            limit=args["limit"],
            epoch=args.get("epoch"),
        )
        data = [catch_up.represent(entry) for entry in entries]
    next_after = data[-1]["sequence"] if data else args["after"]
    named = {"epoch": epoch.name} | {name: args[name] for name in ("lane",) if name in args}
    body = {"data": data, "next_cursor": None, "next_after": next_after, **named}
    query = urlencode({"after": next_after, **named, "limit": args["limit"]})
    link = f'<{services().settings.base_url}{request.path}?{query}>; rel="next"'
    return answer(body, headers={"Link": link} if data else {})


@blp.lists(
    "/deliveries",
    READ_TENANT,
    DeliverySchema,
    TenantHistoryArgs,
    represent=delivery_history.represent,
    schema=TenantHistoryPageSchema,
    endpoint="of_tenant",
    snapshot=True,
)
def list_tenant_deliveries(
    session: Session, args: Mapping[str, Any], before: Any, limit: int
) -> Sequence[Any]:
    """List the deliveries of all webhooks, newest first

    All given filters must match. `status` takes several values. While over 10,000 are open, a page
    by an open status may hold fewer than `limit`, or none, although more follow: continue while
    there is a `next_cursor`.
    """
    tenant_id, wanted = caller().tenant_id, tenant_filters(args)
    return delivery_list.page(session, tenant_id, wanted, before=before, limit=limit)


@blp.serves("GET /deliveries/groups", READ_TENANT, FailureGroupsSchema, args=GroupArgs)
def groups(args: dict[str, Any]) -> dict[str, Any]:
    """Group failed deliveries by webhook and cause

    Covers the newest 10,000 deliveries that failed or wait for a retry. A replayed delivery counts
    by its replay, so a delivered event is in no group. `group` filters the list of deliveries, and
    selects deliveries to replay.
    """
    with transaction(snapshot=True) as session:
        found = failure_groups.find(session, caller().tenant_id, tenant_filters(args))
        return failure_groups.represent(found)


def tenant_filters(args: Mapping[str, Any]) -> Filters:
    """Return the filters that a query names."""
    statuses = frozenset(map(Status, args.get("status", ())))
    return Filters(**{**filters(args), "status": statuses})


stats = Routes("stats", __name__, url_prefix="/v1", description="Traffic by hour or day.")


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


@stats.serves("GET /stats", READ_TENANT, StatsSchema, args=StatsArgs, endpoint="tenant")
def read_tenant(args: dict[str, Any]) -> dict[str, Any]:
    """Count the traffic of all webhooks, by hour or day

    By default of the last 24 hours. An attempt counts in the hour in which its outcome is recorded.
    Kept as long as the history of deliveries.
    """
    with transaction(snapshot=True) as session:
        return _stats(session, args)


@stats.serves(
    "GET /webhooks/<webhook_id>/stats",
    READ_TENANT,
    StatsSchema,
    args=StatsArgs,
    endpoint="webhook",
)
def read_webhook(args: dict[str, Any], webhook_id: UUID | None) -> dict[str, Any]:
    """Count the traffic of a webhook, by hour or day

    As `GET /v1/stats`; a deleted webhook's traffic is kept too.
    """
    with transaction(snapshot=True) as session:
        return _stats(session, args, webhooks.require_history(session, caller(), webhook_id))


def _stats(
    session: Session, args: dict[str, Any], webhook_id: UUID | None = None
) -> dict[str, Any]:
    span = hours.span(database_now(session), args.get("since"), args.get("until"), args["step"])
    return {"data": hours.traffic(session, caller().tenant_id, span, webhook_id)}
