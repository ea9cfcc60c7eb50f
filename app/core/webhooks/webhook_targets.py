"""Where a webhook's deliveries go: its URL, and the headers of its receiver's own, sealed at rest.

A URL's path and query often hold a token, and a header's value a password. The column `url` keeps
what anybody may see, with the mark `#`; a plain URL is of the release before, until it is sealed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app.database import cursor
from app.lib.crypto.sealing import MasterKeys

HIDDEN = "***"
# No URL of a webhook has a fragment, and a worker of the release before sends to none that has.
_SEALED = "#"
# What is shorter is found in many texts, and is no secret.
_SHORTEST_SECRET = 8

AT_ONCE = 500


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
    return {"url": target.shown + _SEALED, "sealed_target": sealed}


def open_sealed(
    master_keys: MasterKeys, url: str, sealed: bytes | None, tenant_id: UUID, webhook_id: UUID
) -> Target:
    """Return a webhook's target from its columns.

    Raises `app.lib.crypto.sealing.CannotOpen` when the bytes are not this webhook's or the key is
    unknown.
    """
    if sealed is None:
        return Target(url)
    opened = json.loads(master_keys.open(sealed, identity(tenant_id, webhook_id)))
    # A plain URL was set by the release before, beside the headers of this one.
    return Target(opened["url"] if url.endswith(_SEALED) else url, opened["headers"])


def public_part(url: str) -> str:
    """Return what anybody may see of a URL, from its column, without the seal's key."""
    return Target(url.removesuffix(_SEALED)).shown


@dataclass(frozen=True)
class _Plain:
    tenant_id: UUID
    id: UUID
    url: str
    sealed_target: bytes | None


_PLAIN = """
SELECT tenant_id, id, url, sealed_target FROM webhooks WHERE url NOT LIKE '%%#'
 ORDER BY tenant_id, id LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
"""
_SEAL = """
UPDATE webhooks SET url = %(url)s, sealed_target = %(sealed_target)s
 WHERE tenant_id = %(tenant)s AND id = %(id)s
"""


def seal_plain(session: Session, master_keys: MasterKeys) -> int:
    """Seal up to 500 plain URLs, in a session that sees every tenant; return how many."""
    found = cursor(session, class_row(_Plain)).execute(_PLAIN, (AT_ONCE,)).fetchall()
    changes = []
    for row in found:
        of_row = (row.tenant_id, row.id)
        target = open_sealed(master_keys, row.url, row.sealed_target, *of_row)
        made = columns(master_keys, *of_row, target)
        changes.append({**made, "tenant": row.tenant_id, "id": row.id})
    if changes:
        cursor(session).executemany(_SEAL, changes)
    return len(changes)


def identity(tenant_id: UUID, webhook_id: UUID) -> str:
    """Return the identity (associated data) under which a webhook's target is sealed."""
    return f"webhooks/{tenant_id}/{webhook_id}/target"
