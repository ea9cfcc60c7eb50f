"""What is sealed in a webhook's row: its signing secrets, its URL, and its receiver's own headers.

The newest secret has no end. Each older one keeps the end that its own rotation set, and signs
together with the newest until then, so a receiver can change over without losing a delivery. A
URL's path and query often hold a token: the column `url` keeps what anybody may see.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

from app import ids
from app.clock import rfc3339
from app.core.delivery.lanes.lanes import Lane
from app.lib.crypto.sealing import MasterKeys


@dataclass(frozen=True)
class Secret:
    """A secret: its text, and when it stops signing (None for the newest, which does not)."""

    text: str
    until: datetime | None = None


def seal_secrets(
    master_keys: MasterKeys, tenant_id: UUID, webhook_id: UUID, secrets: Sequence[Secret]
) -> bytes:
    """Seal a webhook's secrets, newest first, bound to its own row."""
    plain = [
        {"secret": secret.text, "until": None if secret.until is None else rfc3339(secret.until)}
        for secret in secrets
    ]
    return master_keys.seal(json.dumps(plain).encode(), secrets_identity(tenant_id, webhook_id))


def open_secrets(
    master_keys: MasterKeys, sealed: bytes, tenant_id: UUID, webhook_id: UUID, at: datetime
) -> list[Secret]:
    """Return the secrets that sign at the moment `at`, newest first; raises `CannotOpen`."""
    opened = json.loads(master_keys.open(sealed, secrets_identity(tenant_id, webhook_id)))
    secrets = [
        Secret(each["secret"], each["until"] and datetime.fromisoformat(each["until"]))
        for each in opened
    ]
    return [secret for secret in secrets if secret.until is None or secret.until > at]


def rotate(secrets: Sequence[Secret], fresh: str, at: datetime, overlap: timedelta) -> list[Secret]:
    """Return the secrets with a fresh one before those in force at `at`; alone without an overlap.

    The previously newest secret ends after the overlap; older ones keep their end.
    """
    newest = Secret(fresh)
    if not overlap:
        return [newest]
    return [newest, *(replace(old, until=old.until or at + overlap) for old in secrets)]


def secrets_identity(tenant_id: UUID, webhook_id: UUID) -> str:
    """Return the identity (associated data) under which a webhook's secrets are sealed."""
    return f"webhooks/{tenant_id}/{ids.webhook_of(webhook_id)}/secrets"


HIDDEN = "***"
# What is shorter is found in many texts, and is no secret.
_SHORTEST_SECRET = 8


@dataclass(frozen=True)
class Target:
    """A webhook's URL, and its headers by name. Its text tells neither."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def shown(self) -> str:
        """The URL without what may be secret: its path and query."""
        parts = urlsplit(self.url)
        hidden = parts.path not in ("", "/") or parts.query
        return f"{self.origin}/{HIDDEN}" if hidden else self.url

    @cached_property
    def secrets(self) -> Sequence[str]:
        """What an answer must not repeat in the history, the longest first."""
        parts = urlsplit(self.url)
        query = f"?{parts.query}" if parts.query else ""
        texts = {parts.path + query, parts.path, parts.query}
        texts |= {value for _, value in parse_qsl(parts.query)}
        for value in self.headers.values():
            texts |= {value, value.partition(" ")[2]}
        return sorted((text for text in texts if len(text) >= _SHORTEST_SECRET), key=len)[::-1]


def columns(
    master_keys: MasterKeys, tenant_id: UUID, webhook_id: UUID, target: Target
) -> dict[str, Any]:
    """Return the columns of a webhook's row that hold its target, bound to that row."""
    plain = json.dumps({"url": target.url, "headers": dict(target.headers)}).encode()
    sealed = master_keys.seal(plain, target_identity(tenant_id, webhook_id))
    return {"url": target.shown, "sealed_target": sealed}


def open_target(
    master_keys: MasterKeys, sealed: bytes, tenant_id: UUID, webhook_id: UUID
) -> Target:
    """Return a webhook's target; raises `app.lib.crypto.sealing.CannotOpen`."""
    return Target(**json.loads(master_keys.open(sealed, target_identity(tenant_id, webhook_id))))


def target_identity(tenant_id: UUID, webhook_id: UUID) -> str:
    """Return the identity (associated data) under which a webhook's target is sealed."""
    return f"webhooks/{tenant_id}/{ids.webhook_of(webhook_id)}/target"


def open_lane(master_keys: MasterKeys, lane: Lane) -> tuple[list[str], Target]:
    """Return the secrets that sign at a lane's `now`, and its target; raises `CannotOpen`."""
    key = (lane.tenant_id, lane.webhook_id)
    secrets = open_secrets(master_keys, lane.sealed_secrets, *key, lane.now)
    return [each.text for each in secrets], open_target(master_keys, lane.sealed_target, *key)
