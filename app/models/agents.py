"""Agents and their sessions."""

from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt, Id, Json, TenantId


class Agent(Base):
    """An AI agent that acts for people."""

    __tablename__ = "agents"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    external_id: Mapped[str | None]
    name: Mapped[str]
    version: Mapped[str | None]
    description: Mapped[str | None]
    metadata_json: Mapped[Json | None]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[CreatedAt]


class FormerAgentName(Base):
    """A name that an agent had until it was given another one."""

    __tablename__ = "former_agent_names"

    tenant_id: Mapped[TenantId]
    agent_id: Mapped[Id]
    until: Mapped[datetime] = mapped_column(primary_key=True)
    name: Mapped[str]


class AgentSession(Base):
    """One run of an agent on behalf of a principal, from its start to its outcome."""

    __tablename__ = "sessions"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    external_id: Mapped[str | None]
    agent_id: Mapped[UUID]
    principal: Mapped[str]
    title: Mapped[str | None]
    metadata_json: Mapped[Json | None]
    status: Mapped[str]
    outcome: Mapped[str | None]
    summary: Mapped[str | None]
    created_at: Mapped[CreatedAt]
    completed_at: Mapped[datetime | None]
    active_at: Mapped[CreatedAt]
    sealed_at: Mapped[datetime | None]


class SessionStatement(Base):
    """The signed statement of a completed session: exactly the bytes, and what they say."""

    __tablename__ = "session_statements"

    tenant_id: Mapped[TenantId]
    session_id: Mapped[Id]
    sha256: Mapped[bytes]
    body: Mapped[bytes]
    key_id: Mapped[str]
    signature: Mapped[bytes]
    records: Mapped[int]
    root: Mapped[bytes]


class SessionDigests(Base):
    """A part of the digests under a statement's root, in order of creation."""

    __tablename__ = "session_digests"

    tenant_id: Mapped[TenantId]
    session_id: Mapped[Id]
    number: Mapped[int] = mapped_column(primary_key=True)
    first_id: Mapped[UUID]
    root: Mapped[bytes]
    digests: Mapped[bytes]
