"""Signatures of what `listen` forwards: Standard Webhooks, and the service's own header.

What is signed is `{id}.{timestamp}.{body}`, with HMAC-SHA256, keyed by the base64 after `whsec_`
(https://www.standardwebhooks.com).
"""

from __future__ import annotations

import base64
import hmac
import secrets
from contextlib import closing

from record_service import state

PREFIX = "whsec_"
_SCHEMA = "CREATE TABLE IF NOT EXISTS secrets (whose TEXT PRIMARY KEY, secret TEXT NOT NULL)"


def own_secret(base_url: str, tenant_id: str) -> str:
    """Return this machine's secret for a tenant, which is made once."""
    whose = state.name(base_url, tenant_id)
    made = PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    with closing(state.database("secrets.sqlite", _SCHEMA)) as kept:
        kept.execute("INSERT INTO secrets VALUES (?, ?) ON CONFLICT DO NOTHING", (whose, made))
        found = kept.execute("SELECT secret FROM secrets WHERE whose = ?", (whose,))
        return str(found.fetchone()[0])


def headers(secret: str, event_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the signature headers of one request; `timestamp` is in whole Unix seconds."""
    key = base64.b64decode(secret[len(PREFIX) :])
    signature = hmac.digest(key, f"{event_id}.{timestamp}.".encode() + body, "sha256")
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(signature).decode()}",
        "x-service-signature-v2": f"t={timestamp},v2={signature.hex()}",
    }
