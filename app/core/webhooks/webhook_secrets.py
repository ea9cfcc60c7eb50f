"""The secrets that sign a webhook's deliveries: sealed at rest, and several during a rotation.

The newest secret has no end. Each older one keeps the end that its own rotation set, and signs
together with the newest until then, so a receiver can change over without losing a delivery.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from app import ids
from app.clock import rfc3339
from app.lib.crypto.sealing import MasterKeys


@dataclass(frozen=True)
class Secret:
    """A secret: its text, and when it stops signing (None for the newest, which does not)."""

    text: str
    until: datetime | None = None


def seal(
    master_keys: MasterKeys, tenant_id: UUID, webhook_id: UUID, secrets: Sequence[Secret]
) -> bytes:
    """Seal a webhook's secrets, newest first, bound to its own row."""
    plain = [
        {"secret": secret.text, "until": None if secret.until is None else rfc3339(secret.until)}
        for secret in secrets
    ]
    return master_keys.seal(json.dumps(plain).encode(), identity(tenant_id, webhook_id))


def open_sealed(
    master_keys: MasterKeys, sealed: bytes, tenant_id: UUID, webhook_id: UUID, at: datetime
) -> list[Secret]:
    """Return the secrets that sign at the moment `at` (aware), newest first.

    Raises `app.lib.crypto.sealing.CannotOpen` when the bytes are not this webhook's or the key is
    unknown.
    """
    opened = json.loads(master_keys.open(sealed, identity(tenant_id, webhook_id)))
    secrets = [
        Secret(each["secret"], each["until"] and datetime.fromisoformat(each["until"]))
        for each in opened
    ]
    return [secret for secret in secrets if secret.until is None or secret.until > at]


def open_secrets(
    master_keys: MasterKeys, sealed: bytes, tenant_id: UUID, webhook_id: UUID, at: datetime
) -> list[str]:
    """Return the texts of the secrets that sign at the moment `at`, newest first, for the sender.

    Raises `app.lib.crypto.sealing.CannotOpen` as `open_sealed` does.
    """
    return [secret.text for secret in open_sealed(master_keys, sealed, tenant_id, webhook_id, at)]


def rotate(secrets: Sequence[Secret], fresh: str, at: datetime, overlap: timedelta) -> list[Secret]:
    """Return the secrets with a fresh one before those in force at `at`; alone without an overlap.

    The previously newest secret ends after the overlap; older ones keep their end.
    """
    newest = Secret(fresh)
    if not overlap:
        return [newest]
    return [newest, *(replace(old, until=old.until or at + overlap) for old in secrets)]


def identity(tenant_id: UUID, webhook_id: UUID) -> str:
    """Return the identity (associated data) under which a webhook's secrets are sealed."""
    return f"webhooks/{tenant_id}/{ids.webhook_of(webhook_id)}/secrets"
