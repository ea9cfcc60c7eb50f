"""Tenants and their settings."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, Text, true
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt, Id, TenantId


class Tenant(Base):
    """One customer of the service; nothing of one is ever seen by another.

    The database keeps `digest_series`, new with each address that is set where none was, and
    `address_nonce`, new with each change of the address.
    `chain_salt` counts only with `chain_seal`.
    """

    __tablename__ = "tenants"

    id: Mapped[Id]
    name: Mapped[str]
    bundle_visibility: Mapped[str] = mapped_column(server_default="private")
    bundle_retention_days: Mapped[int | None]
    anchoring_enabled: Mapped[bool] = mapped_column(server_default=true())
    notification_email: Mapped[str | None]
    digest_series: Mapped[UUID | None]
    address_nonce: Mapped[UUID | None]
    alert_kinds: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    expired_through: Mapped[datetime | None]
    suspended_at: Mapped[datetime | None]
    patrolled_at: Mapped[datetime | None]
    patrolled_id: Mapped[UUID | None]
    sealed_search_key: Mapped[bytes | None]
    chain_salt: Mapped[bytes | None]
    chain_seal: Mapped[bytes | None]
    created_at: Mapped[CreatedAt]


class WordPosition(Base):
    """Up to which id a tenant's rows of a table are indexed, and when that failed last."""

    __tablename__ = "word_positions"

    tenant_id: Mapped[TenantId]
    source: Mapped[str] = mapped_column(primary_key=True)
    through: Mapped[UUID | None]
    failed_at: Mapped[datetime | None]


class TenantFigures(Base):
    """What a tick counted of a tenant for the operator; `at` is when it changed last."""

    __tablename__ = "tenant_figures"

    tenant_id: Mapped[TenantId]
    waiting: Mapped[int]
    failed: Mapped[int]
    failing: Mapped[int]
    slow: Mapped[int]
    bytes: Mapped[int]
    at: Mapped[CreatedAt]
