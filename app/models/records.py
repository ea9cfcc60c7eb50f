"""Records and their bundles: metadata stays, the bundle goes when its tenant says so."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, FetchedValue, SmallInteger
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt, Id, Json, TenantId


class Record(Base):
    """An agent's act; agent and principal are copied from its session for pins and feeds."""

    __tablename__ = "records"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    session_id: Mapped[UUID]
    agent_id: Mapped[UUID]
    principal: Mapped[str]
    kind: Mapped[str]
    title: Mapped[str]
    labels_json: Mapped[Json]
    occurred_at: Mapped[datetime]
    bundle_sha256: Mapped[bytes]
    bundle_size: Mapped[int]
    key_id: Mapped[str]
    signature: Mapped[bytes]
    created_at: Mapped[datetime]
    trace_id: Mapped[str | None]
    # The transaction that wrote it.
    written_by: Mapped[int] = mapped_column(BigInteger, server_default=FetchedValue())


class Bundle(Base):
    """The signed bytes, sealed; a row gone is a bundle expired.

    They lie in `bytes` or else in the object that `blob` names; with both they wait to go there.
    """

    __tablename__ = "bundles"

    tenant_id: Mapped[TenantId]
    record_id: Mapped[Id]
    size: Mapped[int]
    bytes: Mapped[bytes | None]
    blob: Mapped[UUID | None]


class DeadBlob(Base):
    """An object that no row names any more: it is to be erased from the object store.

    `owner_id` and `number` are the rest of the key that its row had in the table `kind`.
    """

    __tablename__ = "dead_blobs"

    tenant_id: Mapped[TenantId]
    blob: Mapped[Id]
    kind: Mapped[str]
    owner_id: Mapped[UUID]
    number: Mapped[int] = mapped_column(BigInteger)
    due_at: Mapped[CreatedAt]


class Hold(Base):
    """A legal hold on a record, a session, an agent, or the records created in a range of time."""

    __tablename__ = "holds"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    reason: Mapped[str]
    record_id: Mapped[UUID | None]
    session_id: Mapped[UUID | None]
    agent_id: Mapped[UUID | None]
    subject_id: Mapped[UUID | None] = mapped_column(server_default=FetchedValue())
    since: Mapped[datetime | None]
    until: Mapped[datetime | None]
    created_at: Mapped[datetime]
    created_by: Mapped[UUID]
    released_at: Mapped[datetime | None]
    released_by: Mapped[UUID | None]


class StoredRecords(Base):
    """Part of a tenant's count of records and bundles' bytes: the shards' sum is what it has.

    Triggers on `bundles` add to them, and alone a shard may be below zero.
    """

    __tablename__ = "stored_records"

    tenant_id: Mapped[TenantId]
    shard: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    records: Mapped[int]
    bytes: Mapped[int]


class RecordWords(Base):
    """The words of a record's metadata, as lexemes of its tenant's own."""

    __tablename__ = "record_words"

    tenant_id: Mapped[TenantId]
    record_id: Mapped[Id]
    words: Mapped[str] = mapped_column(TSVECTOR)


class BundleWords(Base):
    """The same with the words of its content; they go with the bundle."""

    __tablename__ = "bundle_words"

    tenant_id: Mapped[TenantId]
    record_id: Mapped[Id]
    words: Mapped[str] = mapped_column(TSVECTOR)
