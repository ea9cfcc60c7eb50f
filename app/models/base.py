"""Base of all tables.

The first column of every primary key is `tenant_id`, and of every unique index but those by which a
token finds its tenant. That suits row-level security; what distribution by tenant would need beyond
is in docs/scale.md. JSON documents are kept as canonical JSON text, because
`jsonb` rewrites numbers and refuses U+0000.
"""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from sqlalchemy import REAL, BigInteger, DateTime, Text, Uuid, func, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import LargeBinary

TenantId = Annotated[UUID, mapped_column(Uuid, primary_key=True)]
Id = Annotated[UUID, mapped_column(Uuid, primary_key=True)]
Json = Annotated[str, mapped_column(Text)]
# Set by PostgreSQL's own clock when the row is written.
CreatedAt = Annotated[
    datetime, mapped_column(DateTime(timezone=True), server_default=func.clock_timestamp())
]
# Numbers that begin at zero in the database.
Count = Annotated[int, mapped_column(BigInteger, server_default=text("0"))]


class Base(DeclarativeBase):
    """The root of every model."""

    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy's own spelling
        datetime: DateTime(timezone=True),
        str: Text,
        bytes: LargeBinary,
        int: BigInteger,
        float: REAL,
        UUID: Uuid,
    }


class Row(Base):
    """A row of one tenant with an id of its own."""

    __abstract__ = True

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
