"""Master keys, by their public ids: those that may have sealed what is in the database."""

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt


class MasterKey(Base):
    """A key that was in front of some process's MASTER_KEYS, or that something was found under.

    The key itself is never here. `in_front_at` is when a process last recorded that it seals under
    it (none: something was found), `emptied_at` when nothing was found under it: from then on it is
    not missed.
    """

    __tablename__ = "master_keys"

    key_id: Mapped[str] = mapped_column(primary_key=True)
    seen_at: Mapped[CreatedAt]
    in_front_at: Mapped[datetime | None]
    emptied_at: Mapped[datetime | None]
