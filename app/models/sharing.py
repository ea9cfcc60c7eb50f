"""Share links: each opens one record until it expires or is revoked."""

from datetime import date, datetime
from uuid import UUID

from sqlalchemy import Date
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import LargeBinary

from app.models.base import Base, Count, Id, TenantId


class ShareLink(Base):
    """A link, known only by the SHA-256 of its token."""

    __tablename__ = "share_links"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    record_id: Mapped[UUID]
    digest: Mapped[bytes]
    created_at: Mapped[datetime]
    created_by: Mapped[UUID]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    opened: Mapped[Count]
    last_opened_at: Mapped[datetime | None]


class ShareLinkOpening(Base):
    """An access to a link by an address on a day (UTC); the address cannot be recovered."""

    __tablename__ = "share_link_openings"

    tenant_id: Mapped[TenantId]
    share_link_id: Mapped[Id]
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    address_hash: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
