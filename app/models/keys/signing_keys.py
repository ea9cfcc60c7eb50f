"""The service's Ed25519 keys: those that sign bundles and packs, and the log's own."""

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt


class SigningKey(Base):
    """One key pair; the private half is sealed, and a retired one still verifies.

    Of a revoked one nothing counts that others had not seen in the log by `revoked_at`.
    """

    __tablename__ = "signing_keys"

    key_id: Mapped[str] = mapped_column(primary_key=True)
    purpose: Mapped[str]
    public_key: Mapped[bytes]
    sealed_private_key: Mapped[bytes]
    created_at: Mapped[CreatedAt]
    retired_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revocation_reason: Mapped[str | None]
