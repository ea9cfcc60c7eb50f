"""Webhooks: create, read, change, rotate the secret of, and delete them.

A webhook is two rows: its settings, and its lane, which workers lock. Every writer of either locks
the lane first, so no deadlock arises. Deletion is soft: the delivery history stays readable.
"""

import enum
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import scalar_row
from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.callers import Caller, Role
from app.core.delivery import cancelling
from app.core.delivery.lanes import lane_health, lanes
from app.core.delivery.lanes.lanes import Lane
from app.core.webhooks import webhook_changes, webhook_secrets
from app.core.webhooks.webhook_changes import WebhookStatus
from app.core.webhooks.webhook_secrets import HIDDEN, Secret, Target
from app.database import cursor, database_now
from app.errors import Conflict, FieldError, Invalid, NotFound, TooManyWebhooks, WebhookDisabled
from app.lib.crypto import webhook_signing
from app.lib.crypto.sealing import CannotOpen, MasterKeys
from app.lib.outbound.addresses import BadURL, parse_url
from app.models import Tenant, Webhook
from app.settings import Settings

MOST_WEBHOOKS = 10_000
"""The most webhooks of a tenant that `MAX_WEBHOOKS` may allow."""
DEFAULT_MAX_IN_FLIGHT = 4
LARGEST_MAX_IN_FLIGHT = 64
"""The most simultaneous POSTs to one receiver that a webhook may ask for."""
# Each secret in force adds 120 bytes of signature headers to every delivery.
MOST_SECRETS = 20


class State(enum.StrEnum):
    """How a webhook fares: of those that apply the last."""

    OK = "ok"
    SLOW = "slow"
    REFUSING = "refusing"
    FAILING = "failing"
    PAUSED = "paused"
    HELD = "held"
    DISABLED = "disabled"


@dataclass(frozen=True)
class Watched:
    """A webhook with its lanes at the database's `now`."""

    webhook: Webhook
    lanes: Sequence[Lane]
    now: datetime

    @property
    def lane(self) -> Lane:
        """The lane that fares worst."""
        order = list(State)
        return max(self.lanes, key=lambda lane: order.index(_state(self.webhook, lane, self.now)))

    @property
    def id(self) -> UUID:
        """The webhook's id."""
        return self.webhook.id


def create(
    session: Session, caller: Caller, settings: Settings, wanted: Mapping[str, Any]
) -> tuple[Watched, str]:
    """Create a webhook and its lanes; return it and its secret's text, which is not shown again.

    Raises `Invalid` for a URL that cannot be sent to, and `TooManyWebhooks`.
    """
    wanted = dict(wanted)
    target = Target(wanted.pop("url"), _headers({}, wanted.pop("headers", None)))
    _check_url(target.url, settings)
    # Locks the tenant's row, so concurrent creates cannot exceed it.
    one = select(Tenant.id).where(Tenant.id == caller.tenant_id).with_for_update(key_share=True)
    session.execute(one)
    mine = (Webhook.tenant_id == caller.tenant_id, Webhook.deleted_at.is_(None))
    live = session.scalar(select(func.count()).where(*mine)) or 0
    if live >= settings.max_webhooks:
        raise TooManyWebhooks(
            f"This tenant has {live} webhooks; MAX_WEBHOOKS allows {settings.max_webhooks}. Delete "
            "one first."
        )
    webhook_id, secret = ids.new(), webhook_signing.new_secret()
    sealed = webhook_secrets.seal_secrets(
        settings.master_keys, caller.tenant_id, webhook_id, [Secret(secret)]
    )
    fields = {"event_types": None, "description": None, "max_in_flight": DEFAULT_MAX_IN_FLIGHT}
    webhook = Webhook(
        tenant_id=caller.tenant_id,
        id=webhook_id,
        status=WebhookStatus.ENABLED.value,
        sealed_secrets=sealed,
        **webhook_secrets.columns(settings.master_keys, caller.tenant_id, webhook_id, target),
        **(fields | wanted),
    )
    session.add(webhook)
    session.flush()
    webhook_changes.provide_lanes(session, webhook)
    named = {"headers": sorted(target.headers)} if target.headers else {}
    details = {"event_types": webhook.event_types, **named}
    webhook_changes.audit(session, caller, webhook, "create", details)
    return find(session, caller, webhook_id), secret


def rows(session: Session, caller: Caller, before: UUID | None, limit: int) -> Sequence[Watched]:
    """Return up to `limit` webhooks, newest first, older than `before`."""
    older = [] if before is None else [Webhook.id < before]
    return _watched(session, caller.tenant_id, *older, most=limit)


def find(session: Session, caller: Caller, webhook_id: UUID | None) -> Watched:
    """Return one webhook; raises `NotFound` when it does not exist or was deleted."""
    found = _watched(session, caller.tenant_id, Webhook.id == webhook_id)
    if not found:
        raise _not_found()
    return found[0]


def require_history(session: Session, caller: Caller, webhook_id: UUID | None) -> UUID:
    """Return the id of a webhook whose history may be read, deleted or not; raises `NotFound`."""
    found = session.scalar(
        select(Webhook.id).where(Webhook.tenant_id == caller.tenant_id, Webhook.id == webhook_id)
    )
    if found is None:
        raise _not_found()
    return found


def lock(session: Session, tenant_id: UUID, webhook_id: UUID | None) -> Webhook:
    """Return a webhook whose lanes stay locked until the commit; raises `NotFound`."""
    # Two statements: a joined row would be as of before the lock wait.
    if webhook_id is not None:
        lanes.lock_all(session, tenant_id, webhook_id)
    webhook = session.scalars(
        select(Webhook)
        .where(
            Webhook.tenant_id == tenant_id,
            Webhook.id == webhook_id,
            Webhook.deleted_at.is_(None),
        )
        .execution_options(populate_existing=True)
    ).one_or_none()
    if webhook is None:
        raise _not_found()
    return webhook


def require_enabled(webhook: Webhook) -> None:
    """Raise `WebhookDisabled` unless the webhook may be sent to."""
    if webhook.status != WebhookStatus.ENABLED:
        raise WebhookDisabled(
            "This webhook is disabled and is sent nothing. "
            'Enable it first: PATCH it with {"status": "enabled"}.'
        )


def change(
    session: Session,
    caller: Caller,
    settings: Settings,
    webhook_id: UUID | None,
    wanted: Mapping[str, Any],
) -> Watched:
    """Set the fields in `wanted` and leave the rest; no audit entry if no value changes.

    Disabling cancels open deliveries; enabling, or a changed URL or header, resets the lane's
    health. `headers` replaces them all, but keeps the value of one that is sent as `***`. `held`
    keeps deliveries waiting until it is false again. Raises `NotFound`, and `Invalid` for a URL or
    header that cannot be sent.
    """
    webhook = lock(session, caller.tenant_id, webhook_id)
    if "url" in wanted:
        _check_url(wanted["url"], settings)
    wanted = dict(wanted)
    held = wanted.pop("held", None)
    before = target_of(webhook, settings.master_keys)
    after = _changed_target(before, wanted)
    others = {name: value for name, value in wanted.items() if name not in ("url", "headers")}
    changed = {name for name, value in others.items() if value != getattr(webhook, name)}
    if after != before:
        parts = ("url", "headers")
        changed |= {name for name in parts if getattr(after, name) != getattr(before, name)}
        others |= webhook_secrets.columns(settings.master_keys, caller.tenant_id, webhook.id, after)
    # The column `url` has no path or query, and of headers only the names are told.
    told = {"headers": {"old": sorted(before.headers), "new": sorted(after.headers)}}
    old = {name: getattr(webhook, name) for name in sorted(changed - told.keys())}
    for name, value in others.items():
        setattr(webhook, name, value)
    if changed:
        webhook.updated_at = func.clock_timestamp()
        told |= {name: {"old": old[name], "new": getattr(webhook, name)} for name in old}
        changes = {name: told[name] for name in sorted(changed)}
        webhook_changes.apply(session, caller, webhook, changes)
    if held is not None:
        webhook_changes.hold(session, caller, webhook, held=held)
    return find(session, caller, webhook.id)


def delete(session: Session, caller: Caller, webhook_id: UUID | None) -> None:
    """Delete a webhook and cancel its open deliveries; raises `NotFound`. Its history stays."""
    webhook = lock(session, caller.tenant_id, webhook_id)
    webhook.deleted_at = func.clock_timestamp()
    session.flush()
    cancelled = cancelling.cancel(session, caller.tenant_id, webhook.id)
    webhook_changes.audit(session, caller, webhook, "delete", {"cancelled_deliveries": cancelled})


def rotate_secret(
    session: Session,
    caller: Caller,
    settings: Settings,
    webhook_id: UUID | None,
    overlap: timedelta,
) -> tuple[Watched, str]:
    """Add a new secret and return it; the older ones sign together with it for the overlap.

    Raises `NotFound`, and `Conflict` when too many older secrets are still in force.
    """
    webhook = lock(session, caller.tenant_id, webhook_id)
    now = database_now(session)
    in_force = webhook_secrets.open_secrets(
        settings.master_keys, webhook.sealed_secrets, caller.tenant_id, webhook.id, now
    )
    fresh = webhook_signing.new_secret()
    secrets = webhook_secrets.rotate(in_force, fresh, now, overlap)
    if len(secrets) > MOST_SECRETS:
        raise Conflict(
            f"{len(in_force)} secrets of this webhook still sign. Wait until one of them ends, or "
            "end them all by rotating with overlap_seconds 0."
        )
    webhook.sealed_secrets = webhook_secrets.seal_secrets(
        settings.master_keys, caller.tenant_id, webhook.id, secrets
    )
    webhook.updated_at = func.clock_timestamp()
    session.flush()
    details = {"overlap_seconds": int(overlap.total_seconds()), "secrets_in_force": len(secrets)}
    webhook_changes.audit(session, caller, webhook, "rotate_secret", details)
    return find(session, caller, webhook.id), fresh


def target_of(webhook: Webhook, master_keys: MasterKeys) -> Target:
    """Return a webhook's URL and headers; raises `app.lib.crypto.sealing.CannotOpen`."""
    return webhook_secrets.open_target(
        master_keys, webhook.sealed_target, webhook.tenant_id, webhook.id
    )


def _changed_target(before: Target, wanted: Mapping[str, Any]) -> Target:
    """Return the target with the wanted URL and headers; raises `Invalid`.

    A header's value, which nobody may read, is not carried to another host.
    """
    after = replace(before, url=wanted.get("url", before.url))
    sent = wanted.get("headers", before.headers and {"": HIDDEN}) or {}
    if after.origin != before.origin and HIDDEN in sent.values():
        text = "This URL is of another host: send every header with its value, or {} for none."
        raise Invalid(FieldError("/headers", text))
    if "headers" not in wanted:
        return after
    return replace(after, headers=_headers(before.headers, wanted["headers"]))


def _headers(before: Mapping[str, str], wanted: Mapping[str, str] | None) -> dict[str, str]:
    """Return the headers to store: those wanted, with the values before where `***` stands."""
    known = {name.lower(): value for name, value in before.items()}
    found = {
        name: known.get(name.lower()) if value == HIDDEN else value
        for name, value in (wanted or {}).items()
    }
    missing = [name for name, value in found.items() if value is None]
    if missing:
        text = f"There is no value of it to keep for {HIDDEN}: send its value."
        places = ("/headers/" + name.replace("~", "~0") for name in missing)
        raise Invalid(*(FieldError(place, text) for place in places))
    return {name: value for name, value in found.items() if value is not None}


def shown_target(webhook: Webhook, caller: Caller, master_keys: MasterKeys) -> dict[str, Any]:
    """Return `url` and `headers` as the caller may see them.

    A URL's path and query often hold a secret, so callers that may only read see the host.
    """
    try:
        target = target_of(webhook, master_keys)
    except CannotOpen:
        # `/readyz` says so; a list of webhooks must not fail for it.
        return {"url": webhook.url, "headers": None}
    return {
        "url": target.url if caller.role.allows(Role.WRITE) else target.shown,
        "headers": dict.fromkeys(target.headers, HIDDEN),
    }


def health(watched: Watched) -> dict[str, Any]:
    """Return what the worst lane's row does not say of its health as it is."""
    lane, webhook = watched.lane, watched.webhook
    refusing_since = lane_health.refusing_since(lane, watched.now)
    is_paused = lane.paused_until is not None and lane.paused_until > watched.now
    paused_until = lane.paused_until if is_paused else None
    used = [each for each in watched.lanes if ids.lane_number(each.webhook_id) <= webhook.lanes]
    return {
        "state": _state(webhook, lane, watched.now).value,
        "paused_until": paused_until and rfc3339(paused_until),
        "refusing_since": rfc3339(refusing_since) if refusing_since else None,
        "refused_status": lane.refused_status if refusing_since else None,
        "slow": lane.slow_at is not None,
        "concurrency": {
            "now": sum(until > watched.now for each in watched.lanes for until in each.slot_leases),
            "allowed": sum(min(each.concurrency, webhook.max_in_flight) for each in used),
        },
    }


def _state(webhook: Webhook, lane: Lane, now: datetime) -> State:
    applies = {
        State.OK: True,
        State.SLOW: lane.slow_at is not None,
        State.REFUSING: lane_health.refusing_since(lane, now) is not None,
        State.FAILING: lane.failing_since is not None,
        State.PAUSED: lane.paused_until is not None and lane.paused_until > now,
        State.HELD: lane.held,
        State.DISABLED: webhook.status != WebhookStatus.ENABLED,
    }
    return [state for state in State if applies[state]][-1]


def _watched(
    session: Session, tenant_id: UUID, *conditions: ColumnElement[bool], most: int | None = None
) -> list[Watched]:
    """Return the webhooks, newest first, that are not deleted."""
    found = session.execute(
        select(Webhook, func.clock_timestamp())
        .where(Webhook.tenant_id == tenant_id, Webhook.deleted_at.is_(None), *conditions)
        .order_by(Webhook.id.desc())
        .limit(most)
        .execution_options(populate_existing=True)
    ).all()
    named = cursor(session, scalar_row).execute(
        "SELECT id FROM webhook_lanes WHERE tenant_id = %s AND webhook_id = ANY (%s)",
        (tenant_id, [webhook.id for webhook, _ in found]),
    )
    keys = [(tenant_id, each) for each in sorted(named, key=ids.lane_number)]
    stored = lanes.load_each(session, keys, locked=False)
    of: defaultdict[UUID, list[Lane]] = defaultdict(list)
    for key in keys:
        of[ids.webhook_of(key[1])].append(stored[key])
    return [Watched(webhook, of[webhook.id], now) for webhook, now in found]


def _check_url(url: str, settings: Settings) -> None:
    try:
        parse_url(url, settings.webhook_allowed_networks, settings.webhook_nat64_prefixes)
    except BadURL as error:
        raise Invalid(FieldError("/url", error.detail)) from None


def _not_found() -> NotFound:
    return NotFound("There is no webhook with this id.")
