"""The transparency log's tables: commitments of all tenants, which name no tenant and no record."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt


class LogGeneration(Base):
    """One log: its origin, the key that signs it, and the last checkpoint of the one before.

    `trouble` is why it signs nothing just now; `head_kept` whether a head was ever kept outside;
    `appointment` the seal under MASTER_KEYS without which there is no successor.
    """

    __tablename__ = "log_generations"

    generation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    origin: Mapped[str]
    key_id: Mapped[str]
    predecessor: Mapped[str | None]
    head_kept: Mapped[bool] = mapped_column(server_default=text("false"))
    trouble: Mapped[str | None]
    appointment: Mapped[bytes | None]
    created_at: Mapped[CreatedAt]


class LogLeaf(Base):
    """One leaf; without an index, or with one in an older generation, it waits."""

    __tablename__ = "log_leaves"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    leaf_hash: Mapped[bytes]
    data: Mapped[bytes]
    leaf_index: Mapped[int | None]
    generation: Mapped[int | None]


class LogTile(Base):
    """The widest of a tile; level -1 holds entry bundles."""

    __tablename__ = "log_tiles"

    generation: Mapped[int] = mapped_column(primary_key=True)
    level: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class LogCheckpoint(Base):
    """A size and its root; prepared until it has a note, published from then on.

    `unpublished_note` is that of a candidate: signed, and shown to witnesses alone.
    """

    __tablename__ = "checkpoints"

    generation: Mapped[int] = mapped_column(primary_key=True)
    size: Mapped[int] = mapped_column(primary_key=True)
    root: Mapped[bytes]
    note: Mapped[bytes | None]
    prepared_at: Mapped[CreatedAt]
    published_at: Mapped[datetime | None]
    unpublished_note: Mapped[bytes | None]
    signed_at: Mapped[datetime | None]
