"""Webhooks, the cold row that people change, and lanes, the hot row that workers lock; events.

Of a lane `webhook_id` is the lane's key: of the first lane the webhook's id itself
(`ids.lane_of`).
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, DateTime, FetchedValue, SmallInteger, Text, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Row, SmallCount, TenantId


class Webhook(Row):
    """Where a tenant wants its events, and the sealed secrets that sign them.

    `url` is what anybody may see; the URL itself is in `sealed_target`, with headers.
    """

    __tablename__ = "webhooks"

    url: Mapped[str]
    event_types: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    description: Mapped[str | None]
    max_in_flight: Mapped[int] = mapped_column(SmallInteger)
    lanes: Mapped[int] = mapped_column(SmallInteger, server_default=text("1"))
    status: Mapped[str]
    disabled_reason: Mapped[str | None]
    sealed_secrets: Mapped[bytes]
    sealed_target: Mapped[bytes]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[CreatedAt]
    deleted_at: Mapped[datetime | None]


class WebhookLane(Row):
    """A lane of a webhook, which may have up to 16; none is taken away when it has fewer."""

    __tablename__ = "webhook_lanes"

    webhook_id: Mapped[UUID]


class Lane(Base):
    """The moving state of one lane's deliveries.

    `concurrency` is how many POSTs its receiver's answers allow at once (`concurrency.after`),
    `latency_ms` their moving average, unknown before the first.

    `next_sequence` is the lane's own counter of accepted events: accounting compares it with the
    totals, and neither is computed from the other. The `…_open` are what has not ended, an event
    from when it has its number. The `…_arrived` are, of the failed and the cancelled, those whose
    event a replay has delivered.
    """

    __tablename__ = "lanes"

    tenant_id: Mapped[TenantId]
    webhook_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    version: Mapped[Count]
    next_sequence: Mapped[int] = mapped_column(server_default=text("1"))
    due_at: Mapped[datetime | None]
    ring_at: Mapped[datetime | None]
    look_at: Mapped[datetime | None]
    paused_until: Mapped[datetime | None]
    pause_level: Mapped[SmallCount]
    consecutive_failures: Mapped[Count]
    failing_since: Mapped[datetime | None]
    last_success_at: Mapped[datetime | None]
    slow_at: Mapped[datetime | None]
    unsuccessful_since: Mapped[datetime | None]
    unsuccessful_attempts: Mapped[Count]
    unsuccessful_deliveries: Mapped[Count]
    refused_status: Mapped[int | None] = mapped_column(SmallInteger)
    last_failures: Mapped[list[datetime]] = mapped_column(
        ARRAY(DateTime(timezone=True)), server_default=text("'{}'")
    )
    slot_holders: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default=text("'{}'"))
    slot_leases: Mapped[list[datetime]] = mapped_column(
        ARRAY(DateTime(timezone=True)), server_default=text("'{}'")
    )
    warned_at: Mapped[datetime | None]
    concurrency: Mapped[int] = mapped_column(SmallInteger, server_default=text("1"))
    halved_at: Mapped[datetime | None]
    latency_ms: Mapped[float | None]
    recovering_since: Mapped[datetime | None]
    recovered_through: Mapped[datetime | None]
    receiver_since: Mapped[datetime | None]
    open_from: Mapped[list[datetime]] = mapped_column(
        ARRAY(DateTime(timezone=True)),
        server_default=text("array_fill('epoch'::timestamptz, ARRAY[6])"),
    )
    held_since: Mapped[datetime | None]
    events_succeeded: Mapped[Count]
    events_failed: Mapped[Count]
    events_cancelled: Mapped[Count]
    replays_accepted: Mapped[Count]
    replays_succeeded: Mapped[Count]
    replays_failed: Mapped[Count]
    replays_cancelled: Mapped[Count]
    tests_accepted: Mapped[Count]
    tests_succeeded: Mapped[Count]
    tests_failed: Mapped[Count]
    tests_cancelled: Mapped[Count]
    events_open: Mapped[Count]
    replays_open: Mapped[Count]
    tests_open: Mapped[Count]
    failed_arrived: Mapped[Count]
    cancelled_arrived: Mapped[Count]


class Event(Row):
    """Something that happened, with the exact bytes that every receiver gets.

    `payload` is None of a new finding: the view `events` makes it of the finding.
    `decisions` packs one (webhook, code) of 17 bytes for each webhook that existed: 16 of the
    webhook's id and one code (`event_history.py`). `any_disabled` says that one is "disabled":
    such events are few, and bulk replay looks for them. `subject_id` is the finding
    or session that it is about, if any.
    """

    __tablename__ = "stored_events"

    subject_id: Mapped[UUID | None]
    created_at: Mapped[CreatedAt]
    # The transaction that wrote it.
    written_by: Mapped[int] = mapped_column(BigInteger, server_default=FetchedValue())
    any_disabled: Mapped[bool]
    type: Mapped[str]
    decisions: Mapped[bytes]
    payload: Mapped[bytes | None]
