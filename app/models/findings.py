"""Findings: reports on what an agent did."""

from datetime import date
from uuid import UUID

from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, CreatedAt, Id, Json, TenantId


class Finding(Base):
    """One finding; agent and principal are copied from its session for pins and feeds.

    `digest_id` is the digest that lists it; until there is one, the series in which it waits.
    """

    __tablename__ = "findings"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    session_id: Mapped[UUID]
    record_id: Mapped[UUID | None]
    agent_id: Mapped[UUID]
    principal: Mapped[str]
    rule: Mapped[str]
    severity: Mapped[str]
    source: Mapped[str]
    title: Mapped[str]
    detail: Mapped[str | None]
    data_json: Mapped[Json | None]
    created_at: Mapped[CreatedAt]
    digest_id: Mapped[UUID | None]


class ExpiredFindings(Base):
    """How many findings of a day, rule, severity and source have expired."""

    __tablename__ = "expired_findings"

    tenant_id: Mapped[TenantId]
    day: Mapped[date] = mapped_column(primary_key=True)
    rule: Mapped[str] = mapped_column(primary_key=True)
    severity: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    findings: Mapped[int]


class FindingWords(Base):
    """The words of a finding that is indexed, as lexemes of its tenant's own, and its facets."""

    __tablename__ = "finding_words"

    tenant_id: Mapped[TenantId]
    finding_id: Mapped[Id]
    words: Mapped[str] = mapped_column(TSVECTOR)
