"""Consequences of a change to a webhook: lanes, open deliveries, audit entry."""

import enum
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from app import ids
from app.core import wakeups
from app.core.audit import chain
from app.core.callers import Caller
from app.core.delivery import cancelling
from app.core.delivery.lanes import lanes
from app.database import cursor
from app.models import Webhook


class WebhookStatus(enum.StrEnum):
    """Statuses of a webhook; only an enabled one gets deliveries."""

    ENABLED = "enabled"
    DISABLED = "disabled"


def apply(
    session: Session,
    caller: Caller,
    webhook: Webhook,
    changed: Mapping[str, Any],
) -> None:
    """Apply the consequences of the changed fields, and append them to the audit chain.

    `changed` has the old and new values by field, without what is secret.
    """
    if "status" in changed:
        webhook.disabled_reason = None if webhook.status == WebhookStatus.ENABLED else "requested"
    session.flush()
    if "lanes" in changed:
        provide_lanes(session, webhook)
    enabled = "status" in changed and webhook.status == WebhookStatus.ENABLED
    if enabled:
        cancelling.cancel_all(session, caller.tenant_id, webhook.id)
    other_receiver = not {"url", "headers"}.isdisjoint(changed)
    if enabled or other_receiver:
        # For a changed URL or header, recovery of waiting rows begins too.
        _on_each(session, webhook, _START_ANEW, other=other_receiver)
    fields = {name: values for name, values in changed.items() if name != "status"}
    if fields:
        audit(session, caller, webhook, "update", {"changed": fields})
    if enabled:
        audit(session, caller, webhook, "enable", {})
    elif "status" in changed:
        cancelled = cancelling.cancel(session, caller.tenant_id, webhook.id)
        audit(session, caller, webhook, "disable", {"cancelled_deliveries": cancelled})


_START_ANEW = """
UPDATE lanes
   SET paused_until = NULL, pause_level = 0, consecutive_failures = 0, failing_since = NULL,
       last_failures = DEFAULT, warned_at = NULL, slow_at = NULL,
       unsuccessful_since = NULL, unsuccessful_attempts = DEFAULT,
       unsuccessful_deliveries = DEFAULT, refused_status = NULL,
       concurrency = DEFAULT, halved_at = NULL, latency_ms = NULL,
       recovering_since = CASE WHEN %(other)s THEN clock_timestamp() END, recovered_through = NULL,
       receiver_since = CASE WHEN %(other)s THEN clock_timestamp() ELSE receiver_since END,
       last_success_at = CASE WHEN NOT %(other)s THEN last_success_at END
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
"""


def _on_each(session: Session, webhook: Webhook, change: str, **values: bool) -> int:
    """Change each lane of a webhook, all locked, and ring what is due; return how many changed."""
    tenant_id, changed = webhook.tenant_id, 0
    for lane in lanes.of_webhook(session, tenant_id, webhook.id):
        wanted = {**values, "tenant": tenant_id, "webhook": lane}
        changed += cursor(session).execute(change, wanted).rowcount
        if lanes.reschedule(session, tenant_id, lane):
            wakeups.ring_lanes(session, [(tenant_id, lane)])
    return changed


# A lane that joins is held as the others are, and has the receiver that these have.
_PROVIDE = """
INSERT INTO lanes (tenant_id, webhook_id, held_since, receiver_since)
SELECT k.tenant_id, k.id, first.held_since, first.receiver_since FROM webhook_lanes AS k
  LEFT JOIN present_lanes AS first
    ON first.tenant_id = k.tenant_id AND first.webhook_id = k.webhook_id
 WHERE k.tenant_id = %(tenant)s AND k.webhook_id = %(webhook)s
   AND NOT EXISTS (SELECT FROM lanes AS l WHERE l.tenant_id = k.tenant_id AND l.webhook_id = k.id)
"""


def provide_lanes(session: Session, webhook: Webhook) -> None:
    """Make sure that each lane of a webhook, which is stored, has its row."""
    wanted = {"tenant": webhook.tenant_id, "webhook": webhook.id}
    cursor(session).execute(_PROVIDE, wanted)


_HOLD = """
UPDATE lanes SET held_since = clock_timestamp()
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND held_since IS NULL
"""
# The backlog is sent with the slow start of a new lane.
_RELEASE = """
UPDATE lanes SET held_since = NULL, concurrency = DEFAULT, halved_at = NULL
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND held_since IS NOT NULL
"""


def hold(session: Session, caller: Caller, webhook: Webhook, *, held: bool) -> None:
    """Hold or release a webhook whose lanes are locked; audit it unless it is so already."""
    if _on_each(session, webhook, _HOLD if held else _RELEASE):
        audit(session, caller, webhook, "hold" if held else "release", {})


def audit(
    session: Session, caller: Caller, webhook: Webhook, verb: str, details: Mapping[str, Any]
) -> None:
    """Append `webhook.<verb>`, with the URL's scheme and host only: its path may hold a token."""
    parts = urlsplit(webhook.url)
    target = ("webhook", ids.text("whk", webhook.id))
    details = {"origin": f"{parts.scheme}://{parts.netloc}", **details}
    chain.append_by(session, caller, f"webhook.{verb}", target=target, details=details)
