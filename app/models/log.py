"""The transparency log's tables: commitments of all tenants, which name no tenant and no record."""

from uuid import UUID

from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base


class LogLeaf(Base):
    """One leaf; without an index it waits for the next integration."""

    __tablename__ = "log_leaves"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    leaf_hash: Mapped[bytes]
    data: Mapped[bytes]
    leaf_index: Mapped[int | None]
