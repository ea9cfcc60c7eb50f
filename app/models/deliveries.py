"""Events, their deliveries and every attempt: all partitioned by id, which is time."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, FetchedValue, SmallInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, Json, SmallCount, TenantId


class Event(Base):
    """Something that happened, with the exact bytes that every receiver gets.

    `decisions` packs one (webhook, code) of 17 bytes for each webhook that existed: 16 of the
    webhook's id and one code (`app/core/delivery/history/decisions.py`). `any_disabled` says that
    one is "disabled": such events are few, and bulk replay looks for them. `subject_id` is the
    finding or session that it is about, if any.
    """

    __tablename__ = "events"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    type: Mapped[str]
    payload: Mapped[bytes]
    subject_id: Mapped[UUID | None]
    decisions: Mapped[bytes]
    any_disabled: Mapped[bool]
    created_at: Mapped[CreatedAt]
    # The transaction that wrote it.
    written_by: Mapped[int] = mapped_column(BigInteger, server_default=FetchedValue())


class Delivery(Base):
    """One event on its way to one webhook; open until `finished_at` is set.

    While a worker holds the row, `status` is `sending` and `next_attempt_at` is the end of its
    lease: a row whose worker died is due again by itself. Of its `attempts`, begun last at
    `attempted_at`, the `unscheduled` came ahead of its schedule (`recovery`). `asked_until` is what
    the receiver's last Retry-After asked for. `status_code` is of the last attempt; `outcome` and
    `failure` (`failures.fingerprint`) too, where that failed.
    """

    __tablename__ = "deliveries"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    webhook_id: Mapped[UUID]
    event_id: Mapped[UUID]
    event_type: Mapped[str]
    kind: Mapped[str]
    priority: Mapped[int] = mapped_column(SmallInteger)
    sequence: Mapped[int | None]
    replay_of: Mapped[UUID | None]
    job_id: Mapped[UUID | None]
    status: Mapped[str] = mapped_column(server_default="pending")
    attempts: Mapped[SmallCount]
    claim_no: Mapped[Count]
    claims_lost: Mapped[SmallCount]
    unscheduled: Mapped[SmallCount]
    attempted_at: Mapped[datetime | None]
    asked_until: Mapped[datetime | None]
    outcome: Mapped[str | None]
    status_code: Mapped[int | None] = mapped_column(SmallInteger)
    failure: Mapped[int | None]
    next_attempt_at: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]
    finished_at: Mapped[datetime | None]


class DeliveryAttempt(Base):
    """One attempt: when, how long each phase took, what came back."""

    __tablename__ = "delivery_attempts"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    delivery_id: Mapped[UUID]
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
