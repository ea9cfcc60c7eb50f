"""Anchors of audit chains in the log, and the log's timestamps and cosignatures."""

from datetime import datetime

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt, TenantId


class AuditAnchor(Base):
    """The head of a chain that was put into the log; `leaf_hash` finds its leaf there."""

    __tablename__ = "audit_anchors"

    tenant_id: Mapped[TenantId]
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    hash: Mapped[bytes]
    at: Mapped[datetime]
    leaf_hash: Mapped[bytes]


class CheckpointTimestamp(Base):
    """An RFC 3161 response over a published checkpoint, whole, with the TSA's certificates."""

    __tablename__ = "checkpoint_timestamps"

    generation: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(primary_key=True)
    response: Mapped[bytes]
    tsa_chain: Mapped[str]
    gen_time: Mapped[datetime]
    created_at: Mapped[CreatedAt]


class CheckpointCosignature(Base):
    """A witness's line (C2SP tlog-cosignature) on a published checkpoint.

    `cosigned_at` is None for an algorithm that is not checked here.
    """

    __tablename__ = "checkpoint_cosignatures"

    generation: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    key_hash: Mapped[bytes] = mapped_column(primary_key=True)
    line: Mapped[str]
    cosigned_at: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]


class AnchoringTrouble(Base):
    """An open incident of anchoring, and since when; deleted when that part works again."""

    __tablename__ = "anchoring_troubles"

    part: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime]
    detail: Mapped[str]
    alarm: Mapped[bool]
