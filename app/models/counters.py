"""The figures of the whole stack, as `/metrics` shows them."""

from sqlalchemy import Double
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Json, TenantId


class CounterValue(Base):
    """One figure: the sum of what all processes have added, ended ones too.

    The rows belong to the service itself (`NO_TENANT`), so no tenant's transaction sees one.
    `labels` holds the labels' values, in the order of their names in `app/metrics.py`.
    """

    __tablename__ = "counters"

    tenant_id: Mapped[TenantId]
    name: Mapped[str] = mapped_column(primary_key=True)
    labels: Mapped[Json] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Double)
