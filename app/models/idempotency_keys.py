"""Answers kept so that a repeated POST gets the first one again."""

from uuid import UUID

from sqlalchemy import SmallInteger, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt, TenantId


class IdempotencyKey(Base):
    """One Idempotency-Key of one API key, method and path, with the sealed answer."""

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[TenantId]
    api_key_id: Mapped[UUID] = mapped_column(Uuid, primary_key=True)
    scope: Mapped[bytes] = mapped_column(primary_key=True)
    body_sha256: Mapped[bytes]
    status: Mapped[int] = mapped_column(SmallInteger)
    sealed_answer: Mapped[bytes]
    created_at: Mapped[CreatedAt]
