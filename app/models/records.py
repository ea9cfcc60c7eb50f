"""What agents did: sessions, records, findings; rules, holds, links, exports, webhooks, events.

Lanes, the hot rows that workers lock, are read by `app.core.delivery.lanes`.
"""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, FetchedValue, LargeBinary, SmallInteger, Text, Uuid, text
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, Json, Row, TenantId


class Agent(Row):
    """An AI agent that acts for people."""

    __tablename__ = "agents"

    external_id: Mapped[str | None]
    name: Mapped[str]
    version: Mapped[str | None]
    description: Mapped[str | None]
    metadata_json: Mapped[Json | None]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[CreatedAt]


class AgentSession(Row):
    """One run of an agent on behalf of a principal, from its start to its outcome."""

    __tablename__ = "sessions"

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


class Record(Row):
    """An agent's act; agent and principal are copied from its session for pins and feeds."""

    __tablename__ = "records"

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


class Hold(Row):
    """A legal hold on a record, a session, an agent, or the records created in a range of time."""

    __tablename__ = "holds"

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


class ShareLink(Row):
    """A link, known only by the SHA-256 of its token."""

    __tablename__ = "share_links"

    record_id: Mapped[UUID]
    digest: Mapped[bytes]
    created_at: Mapped[datetime]
    created_by: Mapped[UUID]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    opened: Mapped[Count]
    last_opened_at: Mapped[datetime | None]


class Finding(Row):
    """One finding; agent and principal are copied from its session for pins and feeds.

    `digest_id` is the digest that lists it; until there is one, the series in which it waits.
    """

    __tablename__ = "findings"

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


class FindingWords(Base):
    """The words of a finding that is indexed, as lexemes of its tenant's own, and its facets."""

    __tablename__ = "finding_words"

    tenant_id: Mapped[TenantId]
    finding_id: Mapped[Id]
    words: Mapped[str] = mapped_column(TSVECTOR)


class Rule(Row):
    """A rule; what it is evaluated by stands in the row of its `version`."""

    __tablename__ = "rules"

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


class Trace(Base):
    """A trace of one tenant and pin: what came of it, and what became of that.

    An empty `trace_id` stands for all spans whose trace's id cannot be one.
    """

    __tablename__ = "traces"

    tenant_id: Mapped[TenantId]
    pin: Mapped[Id]
    trace_id: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    id: Mapped[UUID]
    pin_agent_id: Mapped[UUID | None]
    pin_principal: Mapped[str | None]
    status: Mapped[str]
    reason: Mapped[str | None]
    service: Mapped[str | None]
    exporter: Mapped[str | None]
    spans: Mapped[Count]
    rejected: Mapped[Count]
    staged_bytes: Mapped[Count]
    roots: Mapped[Count]
    assembled: Mapped[list[bytes]] = mapped_column(ARRAY(LargeBinary), server_default=text("'{}'"))
    record_ids: Mapped[list[UUID]] = mapped_column(ARRAY(Uuid), server_default=text("'{}'"))
    is_incomplete: Mapped[bool] = mapped_column(server_default=text("false"))
    attempts: Mapped[Count]
    bytes: Mapped[Count]
    at: Mapped[CreatedAt]
    due_at: Mapped[CreatedAt]


class Export(Row):
    """A signed export of the records of a time; its job may be pruned before it.

    Without `made_at` it is being made, or its job has failed. `deleted_at` is when its parts went,
    by its tenant's will or when its days had passed; what was signed stays.
    """

    __tablename__ = "exports"

    since: Mapped[datetime]
    until: Mapped[datetime]
    agent_id: Mapped[UUID | None]
    job_id: Mapped[UUID]
    created_by: Mapped[UUID]
    created_at: Mapped[CreatedAt]
    records: Mapped[int | None]
    size: Mapped[Count]
    statement: Mapped[bytes | None]
    key_id: Mapped[str | None]
    signature: Mapped[bytes | None]
    sha256: Mapped[bytes | None]
    made_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class Webhook(Row):
    """Where a tenant wants its events, and the sealed secrets that sign them.

    `url` is what anybody may see; the URL itself is in `sealed_target`, with headers.
    """

    __tablename__ = "webhooks"

    url: Mapped[str]
    event_types: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    description: Mapped[str | None]
    max_in_flight: Mapped[int] = mapped_column(SmallInteger)
    lanes: Mapped[int] = mapped_column(SmallInteger, server_default=text("1"))
    status: Mapped[str]
    disabled_reason: Mapped[str | None]
    sealed_secrets: Mapped[bytes]
    sealed_target: Mapped[bytes]
    created_at: Mapped[CreatedAt]
    updated_at: Mapped[CreatedAt]
    deleted_at: Mapped[datetime | None]


class Event(Row):
    """Something that happened, with the exact bytes that every receiver gets.

    `payload` is None of a new finding: the view `events` makes it of the finding.
    `decisions` packs one (webhook, code) of 17 bytes for each webhook that existed: 16 of the
    webhook's id and one code (`event_history.py`). `any_disabled` says that one is "disabled":
    such events are few, and bulk replay looks for them. `subject_id` is the finding
    or session that it is about, if any.
    """

    __tablename__ = "stored_events"

    subject_id: Mapped[UUID | None]
    created_at: Mapped[CreatedAt]
    # The transaction that wrote it.
    written_by: Mapped[int] = mapped_column(BigInteger, server_default=FetchedValue())
    any_disabled: Mapped[bool]
    type: Mapped[str]
    decisions: Mapped[bytes]
    payload: Mapped[bytes | None]
