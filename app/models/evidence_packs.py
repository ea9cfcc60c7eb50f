"""Evidence packs, which go with their bundle, and period exports; their bytes, and who had them."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, TenantId


class EvidencePack(Base):
    """One build of a record's or session's pack: begun, then built, then superseded by a better.

    `generation` and `checkpoint_size` name the checkpoint in it, `evidence_rank` says how good what
    others say of that is, `recipe` what of the service's own it was made with, `further` what names
    its further files.
    """

    __tablename__ = "evidence_packs"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    record_id: Mapped[UUID | None]
    session_id: Mapped[UUID | None]
    sha256: Mapped[bytes | None]
    size: Mapped[Count]
    generation: Mapped[int]
    checkpoint_size: Mapped[int]
    evidence_rank: Mapped[int]
    key_id: Mapped[str]
    recipe: Mapped[str]
    further: Mapped[str]
    began_at: Mapped[CreatedAt]
    built_at: Mapped[datetime | None]
    superseded_at: Mapped[datetime | None]


class EvidencePackPart(Base):
    """One part of a pack, from byte `starts` on, sealed for its place.

    Bundles of a session's pack are not stored again: `record_ids` name those that are its lines.
    """

    __tablename__ = "evidence_pack_parts"

    tenant_id: Mapped[TenantId]
    pack_id: Mapped[Id]
    starts: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    bytes: Mapped[bytes | None]
    blob: Mapped[UUID | None]
    record_ids: Mapped[list[UUID] | None] = mapped_column(ARRAY(Uuid))


class EvidenceExport(Base):
    """The first export of a pack by a key, a link, or `public`."""

    __tablename__ = "evidence_exports"

    tenant_id: Mapped[TenantId]
    pack_id: Mapped[Id]
    taker: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[CreatedAt]


class Export(Base):
    """A signed export of the records of a time; its job may be pruned before it.

    Without `made_at` it is being made, or its job has failed. `deleted_at` is when its parts went,
    by its tenant's will or when its days had passed; what was signed stays.
    """

    __tablename__ = "exports"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    since: Mapped[datetime]
    until: Mapped[datetime]
    agent_id: Mapped[UUID | None]
    job_id: Mapped[UUID]
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
    """One part of an export's bytes, from `begin` on, sealed for its place."""

    __tablename__ = "export_parts"

    tenant_id: Mapped[TenantId]
    export_id: Mapped[Id]
    number: Mapped[int] = mapped_column(primary_key=True)
    begin: Mapped[int] = mapped_column(BigInteger)
    size: Mapped[int]
    bytes: Mapped[bytes | None]
    blob: Mapped[UUID | None]


class ExportTaker(Base):
    """The first download of an export by a key."""

    __tablename__ = "export_takers"

    tenant_id: Mapped[TenantId]
    export_id: Mapped[Id]
    key_id: Mapped[UUID] = mapped_column(primary_key=True)
    at: Mapped[CreatedAt]
