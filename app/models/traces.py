"""Traces that exporters sent, and their spans until they are assembled into records."""

from uuid import UUID

from sqlalchemy import ARRAY, LargeBinary, Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, TenantId


class Trace(Base):
    """A trace of one tenant and pin: what came of it, and what became of that.

    An empty `trace_id` stands for all spans whose trace's id cannot be one.
    """

    __tablename__ = "traces"

    tenant_id: Mapped[TenantId]
    pin: Mapped[Id]
    trace_id: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    id: Mapped[UUID]
    pin_agent_id: Mapped[UUID | None]
    pin_principal: Mapped[str | None]
    status: Mapped[str]
    reason: Mapped[str | None]
    service: Mapped[str | None]
    exporter: Mapped[str | None]
    spans: Mapped[Count]
    rejected: Mapped[Count]
    staged_bytes: Mapped[Count]
    roots: Mapped[Count]
    assembled: Mapped[list[bytes]] = mapped_column(ARRAY(LargeBinary), server_default=text("'{}'"))
    record_ids: Mapped[list[UUID]] = mapped_column(ARRAY(Uuid), server_default=text("'{}'"))
    is_incomplete: Mapped[bool] = mapped_column(server_default=text("false"))
    attempts: Mapped[Count]
    bytes: Mapped[Count]
    at: Mapped[CreatedAt]
    due_at: Mapped[CreatedAt]


class StagedSpan(Base):
    """A span as it came, until it is assembled."""

    __tablename__ = "staged_spans"

    tenant_id: Mapped[TenantId]
    pin: Mapped[Id]
    trace_id: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    span_id: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    is_root: Mapped[bool]
    has_ended: Mapped[bool]
    started: Mapped[int]
    body: Mapped[bytes]
    resource: Mapped[bytes]
