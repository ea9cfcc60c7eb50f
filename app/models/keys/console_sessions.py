"""Sessions of the console."""

from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import LargeBinary

from app.models.base import Base, CreatedAt, TenantId


class ConsoleSession(Base):
    """A browser that signed in with a key, known only by the SHA-256 of its token.

    `last_used_at` is right to the minute.
    """

    __tablename__ = "console_sessions"

    tenant_id: Mapped[TenantId]
    digest: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    api_key_id: Mapped[UUID]
    created_at: Mapped[CreatedAt]
    last_used_at: Mapped[datetime]
