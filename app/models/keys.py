"""Keys of every kind; people and their groups; console sessions, repeated requests."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, SmallInteger, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt, Id, TenantId


class ApiKey(Base):
    """A key, known only by the SHA-256 of its text.

    Those of a suspended tenant have `suspended_at`, and `revoked_at` until it is resumed.
    `last_used_at` is a whole minute.
    """

    __tablename__ = "api_keys"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    name: Mapped[str]
    role: Mapped[str]
    pin_agent_id: Mapped[UUID | None]
    pin_principal: Mapped[str | None]
    digest: Mapped[bytes]
    created_at: Mapped[CreatedAt]
    created_by: Mapped[UUID | None]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    suspended_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class ConsoleSession(Base):
    """A browser that signed in, with a key or by a provider, known by the SHA-256 of its token.

    `origin` is the address that it signed in from; `last_used_at` is right to the minute.
    """

    __tablename__ = "console_sessions"

    tenant_id: Mapped[TenantId]
    digest: Mapped[bytes] = mapped_column(primary_key=True)
    id: Mapped[UUID]
    api_key_id: Mapped[UUID | None]
    person_id: Mapped[UUID | None]
    groups: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    origin: Mapped[str | None]
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime]
    last_used_at: Mapped[datetime]


class SavedView(Base):
    """A list's filters under a name: `page` of the console with `query`."""

    __tablename__ = "saved_views"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    page: Mapped[str]
    name: Mapped[str]
    query: Mapped[str]
    created_at: Mapped[CreatedAt]
    created_by: Mapped[UUID]


class KnownPerson(Base):
    """A person who signed in by OpenID Connect, with the labels that the provider told last."""

    __tablename__ = "people"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    issuer: Mapped[str]
    subject: Mapped[str]
    email: Mapped[str | None]
    name: Mapped[str]
    created_at: Mapped[CreatedAt]


class TenantGroup(Base):
    """A group of the provider whose people have a role in a tenant."""

    __tablename__ = "tenant_groups"

    tenant_id: Mapped[TenantId]
    name: Mapped[str] = mapped_column(primary_key=True)
    role: Mapped[str]


class IdempotencyKey(Base):
    """One Idempotency-Key of one API key, method and path, with the sealed answer."""

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[TenantId]
    api_key_id: Mapped[UUID] = mapped_column(primary_key=True)
    scope: Mapped[bytes] = mapped_column(primary_key=True)
    body_sha256: Mapped[bytes]
    status: Mapped[int] = mapped_column(SmallInteger)
    sealed_answer: Mapped[bytes]
    created_at: Mapped[CreatedAt]


class SigningKey(Base):
    """One key pair; the private half is sealed, and a retired one still verifies.

    Of a revoked one nothing counts that others had not seen in the log by `revoked_at`.
    """

    __tablename__ = "signing_keys"

    key_id: Mapped[str] = mapped_column(primary_key=True)
    purpose: Mapped[str]
    public_key: Mapped[bytes]
    sealed_private_key: Mapped[bytes]
    created_at: Mapped[CreatedAt]
    retired_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    revocation_reason: Mapped[str | None]


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


class OperatorSession(Base):
    """An operator's key, until it is used, and then the session that it opened."""

    __tablename__ = "operator_sessions"

    digest: Mapped[bytes] = mapped_column(primary_key=True)
    name: Mapped[str]
    created_at: Mapped[CreatedAt]
    expires_at: Mapped[datetime]
    entered_at: Mapped[datetime | None]
    origin: Mapped[str | None]
