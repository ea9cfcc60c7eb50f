"""Tenants and their callers; mails, durable jobs, and what proves that nobody changed anything."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, BigInteger, Text, false, func, text, true
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, Json, Row, TenantId

# The tenant of the service's own jobs: a primary key cannot begin with NULL.
NO_TENANT = UUID(int=0)


class Tenant(Base):
    """One customer of the service; nothing of one is ever seen by another.

    The database keeps `digest_series`, new with each address that is set where none was, and
    `address_nonce`, new with each change of the address.
    `chain_salt` counts only with `chain_seal`.
    """

    __tablename__ = "tenants"

    id: Mapped[Id]
    name: Mapped[str]
    bundle_visibility: Mapped[str] = mapped_column(server_default="private")
    bundle_retention_days: Mapped[int | None]
    anchoring_enabled: Mapped[bool] = mapped_column(server_default=true())
    notification_email: Mapped[str | None]
    digest_series: Mapped[UUID | None]
    address_nonce: Mapped[UUID | None]
    alert_kinds: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    expired_through: Mapped[datetime | None]
    suspended_at: Mapped[datetime | None]
    looked_through_at: Mapped[CreatedAt]
    sealed_search_key: Mapped[bytes | None]
    chain_salt: Mapped[bytes | None]
    chain_seal: Mapped[bytes | None]
    created_at: Mapped[CreatedAt]


class ApiKey(Row):
    """A key, known only by the SHA-256 of its text.

    Those of a suspended tenant have `suspended_at`, and `revoked_at` until it is resumed.
    `last_used_at` is a whole minute.
    """

    __tablename__ = "api_keys"

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


class KnownPerson(Row):
    """A person who signed in by OpenID Connect, with the labels that the provider told last."""

    __tablename__ = "people"

    issuer: Mapped[str]
    subject: Mapped[str]
    email: Mapped[str | None]
    name: Mapped[str]
    created_at: Mapped[CreatedAt]


class SavedView(Row):
    """A list's filters under a name: `page` of the console with `query`."""

    __tablename__ = "saved_views"

    page: Mapped[str]
    name: Mapped[str]
    query: Mapped[str]
    created_at: Mapped[CreatedAt]
    created_by: Mapped[UUID]


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


class _Mail(Row):
    """What digests and mails of alerts have in common: a mail, from its claim to its end.

    `data_at` is the moment from which on a mail server may have accepted it: until `sent_at`, or,
    where no answer was heard, for some minutes (`app.core.digests.sending`). `brief` has it sent
    without strangers' words, which the server refused. `refusal` is what the last attempt was
    refused for good (`app.lib.mail.mailer.Refusal`), and `said` the server's words.
    """

    __abstract__ = True

    status: Mapped[str] = mapped_column(server_default="pending")
    refusals: Mapped[Count]
    error: Mapped[str | None]
    brief: Mapped[bool] = mapped_column(server_default=false())
    refusal: Mapped[str | None]
    said: Mapped[str | None]
    claimed_at: Mapped[CreatedAt]
    data_at: Mapped[datetime | None]
    sent_at: Mapped[datetime | None]


class Digest(_Mail):
    """One digest.

    It lists the findings that name it, and those of the digest that it `repeats`: one of the same
    `series` (the time in which the tenant had an address) whose mail may not have arrived. Until
    `findings` says how many there are, they are still being taken, up to the id `through`.
    """

    __tablename__ = "digests"

    series: Mapped[UUID]
    through: Mapped[UUID | None]
    repeats: Mapped[UUID | None]
    findings: Mapped[int | None]


class AlertRecipient(Base):
    """An address that is told of a tenant's troubles; `told_through` is the last alert it knows."""

    __tablename__ = "alert_recipients"

    tenant_id: Mapped[TenantId]
    email: Mapped[str] = mapped_column(primary_key=True)
    nonce: Mapped[UUID] = mapped_column(server_default=func.gen_random_uuid())
    told_through: Mapped[int]


class Alert(Base):
    """A trouble, noted once: its kind, its subject's id and name, and since when it stands."""

    __tablename__ = "alerts"

    tenant_id: Mapped[TenantId]
    number: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    subject: Mapped[str]
    since: Mapped[datetime]
    name: Mapped[str]
    detail: Mapped[str]
    noted_at: Mapped[CreatedAt]


class AlertMail(_Mail):
    """One mail of alerts to one recipient.

    It lists the alerts behind the number `after`, and `alerts` up to `through` once it has left.
    """

    __tablename__ = "alert_mails"

    email: Mapped[str]
    nonce: Mapped[UUID]
    after: Mapped[int]
    through: Mapped[int | None]
    alerts: Mapped[int | None]


class Job(Row):
    """One job, from queued to its end; `cursor` is where a resumed run goes on.

    `claims_lost` counts the leases that ended without an outcome since the last outcome.
    """

    __tablename__ = "jobs"

    kind: Mapped[str]
    args: Mapped[Json]
    dedupe_key: Mapped[str | None]
    status: Mapped[str] = mapped_column(server_default="queued")
    attempts: Mapped[Count]
    claim_no: Mapped[Count]
    claims_lost: Mapped[Count]
    run_at: Mapped[CreatedAt]
    ring_at: Mapped[datetime | None]
    locked_until: Mapped[datetime | None]
    progress: Mapped[Json | None]
    cursor: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[CreatedAt]
    finished_at: Mapped[datetime | None]


class AuditHead(Base):
    """The last entry of a tenant's chain; an append locks its row. `anchored` is a hint."""

    __tablename__ = "audit_heads"

    tenant_id: Mapped[TenantId]
    seq: Mapped[int]
    hash: Mapped[bytes]
    anchored: Mapped[int] = mapped_column(server_default=text("0"))


class AuditEntry(Base):
    """One privileged action: `body` is exactly the canonical JSON that was hashed.

    It is None where a segment of the archive has it.

    The columns after `hash` repeat what the body says, for filters; nothing is proven from them.
    """

    __tablename__ = "audit_entries"

    tenant_id: Mapped[TenantId]
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    body: Mapped[bytes | None]
    hash: Mapped[bytes]
    action: Mapped[str]
    at: Mapped[datetime]
    actor: Mapped[str]
    target: Mapped[str]
    outcome: Mapped[str | None]


class AuditAnchor(Base):
    """The head of a chain that was put into the log; `leaf_hash` finds its leaf there."""

    __tablename__ = "audit_anchors"

    tenant_id: Mapped[TenantId]
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    hash: Mapped[bytes]
    at: Mapped[datetime]
    leaf_hash: Mapped[bytes]


class AnchoringTrouble(Base):
    """An open incident of anchoring, and since when; deleted when that part works again."""

    __tablename__ = "anchoring_troubles"

    part: Mapped[str] = mapped_column(primary_key=True)
    since: Mapped[datetime]
    detail: Mapped[str]
    alarm: Mapped[bool]


class LogGeneration(Base):
    """One log: its origin, the key that signs it, and the last checkpoint of the one before.

    `trouble` is why it signs nothing just now; `head_kept` whether a head was ever kept outside;
    `appointment` the seal under MASTER_KEYS without which there is no successor.
    """

    __tablename__ = "log_generations"

    generation: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    origin: Mapped[str]
    key_id: Mapped[str]
    predecessor: Mapped[str | None]
    head_kept: Mapped[bool] = mapped_column(server_default=text("false"))
    trouble: Mapped[str | None]
    appointment: Mapped[bytes | None]
    created_at: Mapped[CreatedAt]
