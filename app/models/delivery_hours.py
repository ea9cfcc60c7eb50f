"""Hourly counts of webhooks' deliveries, and a histogram of attempts' times."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from sqlalchemy import Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, TenantId

_Few = Annotated[int, mapped_column(Integer, server_default=text("0"))]


class _Counts:
    """The counts; each attempt's time counts in the first bucket that holds it."""

    accepted: Mapped[_Few]
    attempted: Mapped[_Few]
    succeeded: Mapped[_Few]
    failed: Mapped[_Few]
    retried: Mapped[_Few]
    within_5_ms: Mapped[_Few]
    within_10_ms: Mapped[_Few]
    within_25_ms: Mapped[_Few]
    within_50_ms: Mapped[_Few]
    within_100_ms: Mapped[_Few]
    within_250_ms: Mapped[_Few]
    within_500_ms: Mapped[_Few]
    within_1_s: Mapped[_Few]
    within_2_s: Mapped[_Few]
    within_5_s: Mapped[_Few]
    within_10_s: Mapped[_Few]
    beyond_10_s: Mapped[_Few]


class DeliveryHour(_Counts, Base):
    """One webhook's hour that begins at `at`, written under the lane's lock."""

    __tablename__ = "delivery_hours"

    tenant_id: Mapped[TenantId]
    at: Mapped[datetime] = mapped_column(primary_key=True)
    webhook_id: Mapped[UUID] = mapped_column(primary_key=True)
    version: Mapped[Count]


class TenantHour(_Counts, Base):
    """The sum over a tenant's webhooks, of an hour that changes no more."""

    __tablename__ = "tenant_hours"

    tenant_id: Mapped[TenantId]
    at: Mapped[datetime] = mapped_column(primary_key=True)


class BacklogHour(Base):
    """The most deliveries of a tenant that waited in an hour, as looked at each minute."""

    __tablename__ = "backlog_hours"

    tenant_id: Mapped[TenantId]
    at: Mapped[datetime] = mapped_column(primary_key=True)
    most: Mapped[Count]
