"""Digests and alerts: one row for each mail that was to be sent, with what became of it."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import false, func
from sqlalchemy.orm import Mapped, mapped_column

from app.models.base import Base, Count, CreatedAt, Id, TenantId


class _Mail(Base):
    """What digests and mails of alerts have in common: a mail, from its claim to its end.

    `data_at` is the moment from which on a mail server may have accepted it: until `sent_at`, or,
    where no answer was heard, for some minutes (`app.core.digests.sending`). `brief` has it sent
    without strangers' words, which the server refused. `refusal` is what the last attempt was
    refused for good (`app.lib.mail.mailer.Refusal`), and `said` the server's words.
    """

    __abstract__ = True

    tenant_id: Mapped[TenantId]
    id: Mapped[Id]
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
