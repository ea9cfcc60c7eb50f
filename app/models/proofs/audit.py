"""The audit chain of each tenant: a head that is locked to append, and the entries."""

from datetime import date, datetime
from uuid import UUID

from sqlalchemy import BigInteger, Date, FetchedValue, text
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, TenantId


class AuditHead(Base):
    """The last entry of a tenant's chain; an append locks its row. `anchored` is a hint."""

    __tablename__ = "audit_heads"

    tenant_id: Mapped[TenantId]
    seq: Mapped[int]
    hash: Mapped[bytes]
    anchored: Mapped[int] = mapped_column(server_default=text("0"))


class AuditEntry(Base):
    """One privileged action: `body` is exactly the canonical JSON that was hashed.

    It is None where a segment of the archive has it.

    The columns after `hash` repeat what the body says, for filters; nothing is proven from them.
    """

    __tablename__ = "audit_entries"

    tenant_id: Mapped[TenantId]
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    body: Mapped[bytes | None]
    hash: Mapped[bytes]
    action: Mapped[str]
    at: Mapped[datetime]
    actor: Mapped[str]
    target: Mapped[str]
    outcome: Mapped[str | None]


class AuditSegment(Base):
    """The bodies of archived entries, from one number to another."""

    __tablename__ = "audit_segments"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    first_seq: Mapped[int] = mapped_column(BigInteger)
    last_seq: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[bytes]
    size: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[bytes | None]
    blob: Mapped[UUID | None]


class RefusedAccess(Base):
    """When a key's last `access.refused` was written, and how often it was refused since."""

    __tablename__ = "refused_access"

    tenant_id: Mapped[TenantId]
    key_id: Mapped[Id]
    entered_at: Mapped[datetime] = mapped_column(server_default=FetchedValue())
    counted: Mapped[Count]


class RecordRead(Base):
    """A record whose content a key read on a day (UTC), with its `record.read`."""

    __tablename__ = "record_reads"

    tenant_id: Mapped[TenantId]
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    key_id: Mapped[Id]
    record_id: Mapped[Id]


class AuditBreak(Base):
    """A break that was found and reported; healed when the chain verified again.

    `subject` is empty for a tenant's own chain. Rows of no tenant are the service's: a chain by its
    name in the log, or the log itself.
    """

    __tablename__ = "audit_breaks"

    tenant_id: Mapped[TenantId]
    subject: Mapped[str] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    expected: Mapped[str]
    found: Mapped[str]
    detected_at: Mapped[CreatedAt]
    seen_at: Mapped[CreatedAt]
    healed_at: Mapped[datetime | None]
