"""Where a webhook's deliveries go: its URL, and the headers of its receiver's own, sealed at rest.

A URL's path and query often hold a token, and a header's value a password. The column `url` keeps
what anybody may see.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

from app import ids
from app.lib.crypto.sealing import MasterKeys

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
    sealed = master_keys.seal(plain, identity(tenant_id, webhook_id))
    return {"url": target.shown, "sealed_target": sealed}


def open_sealed(
    master_keys: MasterKeys, sealed: bytes, tenant_id: UUID, webhook_id: UUID
) -> Target:
    """Return a webhook's target.

    Raises `app.lib.crypto.sealing.CannotOpen` when the bytes are not this webhook's or the key is
    unknown.
    """
    return Target(**json.loads(master_keys.open(sealed, identity(tenant_id, webhook_id))))


def identity(tenant_id: UUID, webhook_id: UUID) -> str:
    """Return the identity (associated data) under which a webhook's target is sealed."""
    return f"webhooks/{tenant_id}/{ids.webhook_of(webhook_id)}/target"
