"""The service's own: durable jobs, every side effect that is not a delivery; and its counters."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import Double
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, Json, TenantId

# The tenant of the service's own jobs: a primary key cannot begin with NULL.
NO_TENANT = UUID(int=0)


class Job(Base):
    """One job, from queued to its end; `cursor` is where a resumed run goes on.

    `claims_lost` counts the leases that ended without an outcome since the last outcome.
    """

    __tablename__ = "jobs"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    kind: Mapped[str]
    args: Mapped[Json]
    dedupe_key: Mapped[str | None]
    status: Mapped[str] = mapped_column(server_default="queued")
    attempts: Mapped[Count]
    claim_no: Mapped[Count]
    claims_lost: Mapped[Count]
    run_at: Mapped[CreatedAt]
    ring_at: Mapped[datetime | None]
    locked_until: Mapped[datetime | None]
    progress: Mapped[Json | None]
    cursor: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[CreatedAt]
    finished_at: Mapped[datetime | None]


class CounterValue(Base):
    """One figure: the sum of what all processes have added, ended ones too.

    The rows belong to the service itself (`NO_TENANT`), so no tenant's transaction sees one.
    `labels` holds the labels' values, in the order of their names in `app/metrics.py`.
    """

    __tablename__ = "counters"

    tenant_id: Mapped[TenantId]
    name: Mapped[str] = mapped_column(primary_key=True)
    labels: Mapped[Json] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Double)
