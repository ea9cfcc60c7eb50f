"""Events, their deliveries and every attempt: all partitioned by id, which is time."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, FetchedValue, SmallInteger, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, Json, SmallCount, TenantId


class Event(Base):
    """Something that happened, with the exact bytes that every receiver gets.

    `payload` is None of a new finding: the view `events` makes it of the finding.
    `decisions` packs one (webhook, code) of 17 bytes for each webhook that existed: 16 of the
    webhook's id and one code (`event_history.py`). `any_disabled` says that one is "disabled":
    such events are few, and bulk replay looks for them. `subject_id` is the finding
    or session that it is about, if any.
    """

    __tablename__ = "stored_events"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    subject_id: Mapped[UUID | None]
    created_at: Mapped[CreatedAt]
    # The transaction that wrote it.
    written_by: Mapped[int] = mapped_column(BigInteger, server_default=FetchedValue())
    any_disabled: Mapped[bool]
    type: Mapped[str]
    decisions: Mapped[bytes]
    payload: Mapped[bytes | None]


class OpenDelivery(Base):
    """One event on its way to one webhook, while it waits or is being sent.

    While a worker holds the row, `status` is `sending`, until the lease ends: a row whose worker
    died is due again by itself. Of its `attempts`, begun last at `attempted_at`, the `unscheduled`
    came ahead of its schedule (`recovery`). `asked_until` is what the receiver's last Retry-After
    asked for. `status_code` is of the last attempt; `outcome` and `failure`
    (`failures.fingerprint`) too, where that failed. `fresh` rows may be without a number.
    """

    __tablename__ = "open_deliveries"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    webhook_id: Mapped[UUID]
    event_id: Mapped[UUID]
    next_attempt_at: Mapped[datetime]
    created_at: Mapped[CreatedAt]
    lease_until: Mapped[datetime | None]
    sequence: Mapped[int | None]
    feed_sequence: Mapped[int | None]
    claim_no: Mapped[Count]
    priority: Mapped[int] = mapped_column(SmallInteger)
    attempts: Mapped[SmallCount]
    claims_lost: Mapped[SmallCount]
    unscheduled: Mapped[SmallCount]
    status_code: Mapped[int | None] = mapped_column(SmallInteger)
    fresh: Mapped[bool] = mapped_column(server_default=text("false"))
    kind: Mapped[str]
    status: Mapped[str] = mapped_column(server_default="pending")
    event_type: Mapped[str]
    replay_of: Mapped[UUID | None]
    job_id: Mapped[UUID | None]
    attempted_at: Mapped[datetime | None]
    asked_until: Mapped[datetime | None]
    failure: Mapped[int | None]
    outcome: Mapped[str | None]


class EndedDelivery(Base):
    """A delivery that is over, with its last attempt.

    `claim_no` is of one that was cancelled, until the answer to its last attempt comes, which is
    not here before.
    """

    __tablename__ = "ended_deliveries"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    webhook_id: Mapped[UUID]
    event_id: Mapped[UUID]
    created_at: Mapped[datetime]
    finished_at: Mapped[CreatedAt]
    attempted_at: Mapped[datetime | None]
    sequence: Mapped[int | None]
    claim_no: Mapped[int | None]
    first_byte_ms: Mapped[float | None]
    total_ms: Mapped[float | None]
    dns_ms: Mapped[float | None]
    connect_ms: Mapped[float | None]
    tls_ms: Mapped[float | None]
    priority: Mapped[int] = mapped_column(SmallInteger)
    attempts: Mapped[int] = mapped_column(SmallInteger)
    status_code: Mapped[int | None] = mapped_column(SmallInteger)
    kind: Mapped[str]
    status: Mapped[str]
    event_type: Mapped[str]
    replay_of: Mapped[UUID | None]
    job_id: Mapped[UUID | None]
    failure: Mapped[int | None]
    outcome: Mapped[str | None]
    response_headers: Mapped[Json | None]
    response_body: Mapped[bytes | None]
    error: Mapped[str | None]


class DeliveryAttempt(Base):
    """An attempt that another follows: when, how long each phase took, what came back.

    The last one lies with its delivery; the view `delivery_attempts` has all.
    """

    __tablename__ = "earlier_attempts"

    tenant_id: Mapped[TenantId]
    delivery_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    id: Mapped[Id]
    number: Mapped[int] = mapped_column(SmallInteger)
    outcome: Mapped[str]
    started_at: Mapped[datetime]
    dns_ms: Mapped[float | None]
    connect_ms: Mapped[float | None]
    tls_ms: Mapped[float | None]
    first_byte_ms: Mapped[float | None]
    total_ms: Mapped[float | None]
    status_code: Mapped[int | None] = mapped_column(SmallInteger)
    response_headers: Mapped[Json | None]
    response_body: Mapped[bytes | None]
    error: Mapped[str | None]
