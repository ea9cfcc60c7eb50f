"""Rules: their versions, when each was on, what is to be judged, and what matched."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import false, text
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, Json, TenantId


class RuleTurn(Base):
    """A tenant's place among those whose work is judged; the lock of its rules and verdicts."""

    __tablename__ = "rule_turns"

    tenant_id: Mapped[TenantId]
    changes: Mapped[Count]
    claim_no: Mapped[Count]
    locked_until: Mapped[datetime | None]
    slow_until: Mapped[datetime | None]
    work_from: Mapped[datetime] = mapped_column(server_default=text("'epoch'"))


class Rule(Base):
    """A rule; what it is evaluated by stands in the row of its `version`."""

    __tablename__ = "rules"

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
    name: Mapped[str]
    version: Mapped[int]
    enabled: Mapped[bool]
    errors: Mapped[Count]
    ended: Mapped[Count]
    last_error_json: Mapped[Json | None]
    erred_at: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[CreatedAt]
    deleted_at: Mapped[datetime | None]


class RuleVersion(Base):
    """A rule as it was from one change to the next."""

    __tablename__ = "rule_versions"

    tenant_id: Mapped[TenantId]
    rule_id: Mapped[Id]
    version: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    subject: Mapped[str]
    condition: Mapped[str]
    severity: Mapped[str]
    title: Mapped[str]
    detail: Mapped[str | None]
    dedupe: Mapped[str | None]
    max_per_hour: Mapped[int]
    created_by: Mapped[str]
    created_at: Mapped[CreatedAt]


class RulePeriod(Base):
    """When a version was on; without an end it still is."""

    __tablename__ = "rule_periods"

    tenant_id: Mapped[TenantId]
    rule_id: Mapped[Id]
    since: Mapped[datetime] = mapped_column(primary_key=True)
    until: Mapped[datetime | None]
    version: Mapped[int]


class RuleWork(Base):
    """A record, or a session that ended, that is still to be judged."""

    __tablename__ = "rule_work"

    tenant_id: Mapped[TenantId]
    at: Mapped[datetime] = mapped_column(primary_key=True)
    subject_id: Mapped[Id]
    is_session: Mapped[bool]


class RuleMatch(Base):
    """A match of a version on a record or session, with how many of its steps matched."""

    __tablename__ = "rule_matches"

    tenant_id: Mapped[TenantId]
    rule_id: Mapped[Id]
    version: Mapped[int] = mapped_column(primary_key=True)
    subject_id: Mapped[Id]
    matched: Mapped[int]


class RuleHour(Base):
    """A rule's matches in one hour: findings made of them, and findings withheld."""

    __tablename__ = "rule_hours"

    tenant_id: Mapped[TenantId]
    rule_id: Mapped[Id]
    hour: Mapped[datetime] = mapped_column(primary_key=True)
    matched: Mapped[int]
    found: Mapped[int]
    withheld: Mapped[int]
    session_id: Mapped[UUID | None]
    record_id: Mapped[UUID | None]
    version: Mapped[int | None]
    told: Mapped[bool] = mapped_column(server_default=false())


class RuleDedupe(Base):
    """A text, by its SHA-256, that makes no further finding until then."""

    __tablename__ = "rule_dedupes"

    tenant_id: Mapped[TenantId]
    rule_id: Mapped[Id]
    text_hash: Mapped[bytes] = mapped_column(primary_key=True)
    until: Mapped[datetime]
