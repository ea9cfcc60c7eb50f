"""API keys: who may call, as what, and for whom."""

from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Mapped

from app.models.base import Base, CreatedAt, Id, TenantId


class ApiKey(Base):
    """A key, known only by the SHA-256 of its text.

    Those of a suspended tenant have `suspended_at`, and `revoked_at` until it is resumed.
    `last_used_at` is a whole minute.
    """

    __tablename__ = "api_keys"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    name: Mapped[str]
    role: Mapped[str]
    pin_agent_id: Mapped[UUID | None]
    pin_principal: Mapped[str | None]
    digest: Mapped[bytes]
    created_at: Mapped[CreatedAt]
    created_by: Mapped[UUID | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    suspended_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
