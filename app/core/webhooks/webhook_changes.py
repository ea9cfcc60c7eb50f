"""Consequences of a change to a webhook: slots, lane, open deliveries, audit entry."""

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
from app.core.delivery.lanes import lane_slots, lanes
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
    if "max_in_flight" in changed:
        lane_slots.provide(session, caller.tenant_id, webhook.id, webhook.max_in_flight)
    enabled = "status" in changed and webhook.status == WebhookStatus.ENABLED
    if enabled:
        cancelling.cancel_all(session, caller.tenant_id, webhook.id)
    other_receiver = not {"url", "headers"}.isdisjoint(changed)
    if enabled or other_receiver:
        _start_anew(session, webhook, other_receiver=other_receiver)
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
       recovering = CASE WHEN %(other)s THEN 1 ELSE 0 END, recovered_through = NULL,
       recovering_since = CASE WHEN %(other)s THEN clock_timestamp() END,
       receiver_since = CASE WHEN %(other)s THEN clock_timestamp() ELSE receiver_since END,
       last_success_at = CASE WHEN NOT %(other)s THEN last_success_at END
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
"""


def _start_anew(session: Session, webhook: Webhook, *, other_receiver: bool) -> None:
    """Reset the lane's health; for a changed URL or header, also begin recovery of waiting rows."""
    wanted = {"other": other_receiver, "tenant": webhook.tenant_id, "webhook": webhook.id}
    cursor(session).execute(_START_ANEW, wanted)
    if lanes.reschedule(session, webhook.tenant_id, webhook.id):
        wakeups.ring_lanes(session, [(webhook.tenant_id, webhook.id)])


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
    """Hold or release a webhook whose lane is locked; audit it unless it is so already."""
    wanted = {"tenant": webhook.tenant_id, "webhook": webhook.id}
    if cursor(session).execute(_HOLD if held else _RELEASE, wanted).rowcount == 0:
        return
    if lanes.reschedule(session, webhook.tenant_id, webhook.id):
        wakeups.ring_lanes(session, [(webhook.tenant_id, webhook.id)])
    audit(session, caller, webhook, "hold" if held else "release", {})


def audit(
    session: Session, caller: Caller, webhook: Webhook, verb: str, details: Mapping[str, Any]
) -> None:
    """Append `webhook.<verb>`, with the URL's scheme and host only: its path may hold a token."""
    parts = urlsplit(webhook.url)
    target = ("webhook", ids.text("whk", webhook.id))
    details = {"origin": f"{parts.scheme}://{parts.netloc}", **details}
    chain.append_by(session, caller, f"webhook.{verb}", target=target, details=details)
