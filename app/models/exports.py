"""Period exports, and the parts of their bytes."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, TenantId


class Export(Base):
    """A signed export of the records of a time; `id` is its job's, which may be pruned before it.

    Without `made_at` it is being made, or its job has failed. `deleted_at` is when its parts went,
    by its tenant's will or when its days had passed; what was signed stays.
    """

    __tablename__ = "exports"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    since: Mapped[datetime]
    until: Mapped[datetime]
    agent_id: Mapped[UUID | None]
    created_by: Mapped[UUID]
    created_at: Mapped[CreatedAt]
    records: Mapped[int | None]
    size: Mapped[Count]
    statement: Mapped[bytes | None]
    key_id: Mapped[str | None]
    signature: Mapped[bytes | None]
    sha256: Mapped[bytes | None]
    made_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class ExportPart(Base):
    """One part of an export's bytes, from `begin` on; `bytes` is None where an object has them."""

    __tablename__ = "export_parts"

    tenant_id: Mapped[TenantId]
    export_id: Mapped[Id]
    number: Mapped[int] = mapped_column(primary_key=True)
    begin: Mapped[int] = mapped_column(BigInteger)
    size: Mapped[int]
    location: Mapped[str]
    bytes: Mapped[bytes | None]


class ExportTaker(Base):
    """The first download of an export by a key."""

    __tablename__ = "export_takers"

    tenant_id: Mapped[TenantId]
    export_id: Mapped[Id]
    key_id: Mapped[UUID] = mapped_column(primary_key=True)
    at: Mapped[CreatedAt]
