"""Evidence packs: their sealed bytes in parts, and who has had them; all gone with the bundle."""

from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, TenantId


class EvidencePack(Base):
    """One build of a record's pack: begun, then built, then superseded by a better one.

    `generation` and `checkpoint_size` name the checkpoint in it, `evidence_rank` says how good what
    others say of that is, `recipe` what of the service's own it was made with, `further` what names
    its further files.
    """

    __tablename__ = "evidence_packs"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    record_id: Mapped[UUID]
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
    """One part of a pack's bytes, sealed for its place."""

    __tablename__ = "evidence_pack_parts"

    tenant_id: Mapped[TenantId]
    pack_id: Mapped[Id]
    number: Mapped[int] = mapped_column(primary_key=True)
    bytes: Mapped[bytes]


class EvidenceExport(Base):
    """The first export of a pack by a key, a link, or `public`."""

    __tablename__ = "evidence_exports"

    tenant_id: Mapped[TenantId]
    pack_id: Mapped[Id]
    taker: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[CreatedAt]
