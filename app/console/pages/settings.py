"""Settings, with their effects shown first; digests and alerts; the reader's zone; API keys."""

import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID

from flask import redirect
from sqlalchemy.orm import Session
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response
from werkzeug.wrappers import Response as AnyResponse

from app import clock, ids
from app.api.http.answers import encode
from app.api.http.services import caller, services, transaction
from app.api.pages import site
from app.api.resources.keys import ExpiresIn, NewKeySchema, RevokeArgs, list_keys, new_key
from app.api.resources.tenant import AlertsChangeSchema, SettingsChangeSchema, list_alert_mails
from app.console.frame import browser, forms, lists, rendering, zone
from app.console.frame.access import Pages
from app.console.frame.forms import Input
from app.core import tenant_settings
from app.core.callers import Role
from app.core.digests import alerts, schedule, sending
from app.core.digests.alerts import Policy
from app.core.digests.troubles import Kind
from app.core.keys import keys
from app.core.records import holds, retention
from app.core.records.holds import HoldStatus
from app.core.tenant_settings import Visibility
from app.models import Digest

blp = Pages("settings")

_CHANGED = "The settings were changed."
_DOES = ("settings show", "GET /v1/tenant/settings")
_VISIBILITY = {
    Visibility.PUBLIC: "Anyone who has a record's id reads its bundle, without a key or a link.",
    Visibility.PRIVATE: "A record's bundle needs a key of yours, or a share link.",
}
_ANCHORED = {
    True: "The audit chain's head goes into the transparency log again.",
    False: "The audit chain's head no longer goes into the transparency log: what is rewritten "
    "from now on is detected only by a head that you kept.",
}


def _page(typed: Input, status: int = 200) -> Response:
    with transaction() as session:
        kept = tenant_settings.represent(tenant_settings.read(session, caller().tenant_id))
        held = bool(holds.rows(session, caller(), {"status": HoldStatus.STANDING}, None, 1))
    return rendering.page(
        "settings/index",
        status,
        typed=typed,
        kept=kept,
        held=held,
        least=services().settings.min_retention_days,
        does=_DOES,
    )


@blp.page("/settings")
def index() -> Response:
    """Show the settings."""
    return _page(forms.blank())


@blp.form("/settings", Role.ADMIN, again=_page)
def change(typed: Input) -> Response:
    """Show the effects of a change; save it once confirmed, if no setting has changed since."""
    wanted = typed.load(SettingsChangeSchema)
    least_days = services().settings.min_retention_days
    with transaction() as session:
        if forms.done_before(session) is not None:
            return rendering.done(".index", _CHANGED)
        before = tenant_settings.represent(tenant_settings.read(session, caller().tenant_id))
        changed = {name: value for name, value in wanted.items() if value != before[name]}
        tenant_settings.check_floor(changed, least_days)
        if not changed:
            return rendering.done(".index", "Nothing was changed: all of it was so.")
        # It confirms that bundles are kept for less long.
        is_shorter = _shortens(before, changed)
        name = tenant_settings.read(session, caller().tenant_id).name if is_shorter else None
        if typed.value("_sure") != _state(before) or name not in (None, typed.value("_name")):
            return _ask(session, typed, before, changed, name)
        tenant_settings.change(session, caller(), changed, least_days)
        forms.keep(session, None)
    return rendering.done(".index", _CHANGED)


def _ask(
    session: Session,
    typed: Input,
    before: dict[str, Any],
    changed: dict[str, Any],
    name: str | None,
) -> Response:
    effects = list(_consequences(session, before, changed))
    return rendering.page(
        "settings/sure",
        200,
        fields=typed.kept_fields(),
        effects=effects,
        name=name,
        mistyped=bool(typed.value("_sure")) and name not in (None, typed.value("_name")),
        state=_state(before),
        does=_DOES,
    )


def _shortens(before: dict[str, Any], changed: dict[str, Any]) -> bool:
    days, old = changed.get("bundle_retention_days"), before["bundle_retention_days"]
    return days is not None and (old is None or days < old)


def _consequences(
    session: Session, before: dict[str, Any], changed: dict[str, Any]
) -> Iterator[str]:
    """Yield a sentence on the effect of each change."""
    if "bundle_retention_days" in changed:
        yield _of_retention(session, before, changed)
    if "bundle_visibility" in changed:
        yield _VISIBILITY[Visibility(changed["bundle_visibility"])]
    if "anchoring_enabled" in changed:
        yield _ANCHORED[changed["anchoring_enabled"]]
    if "notification_email" in changed:
        address = changed["notification_email"]
        yield (
            "No more mail is sent, and a digest that waits is cancelled."
            if address is None
            else f"New findings are mailed to {address}, once in 24 hours at most."
        )


def _of_retention(session: Session, before: dict[str, Any], changed: dict[str, Any]) -> str:
    days = changed["bundle_retention_days"]
    if not _shortens(before, changed):
        kept = "for ever" if days is None else f"for {days:,} days"
        return f"Bundles are kept {kept}. What has expired by now stays gone."
    count = retention.count_older(session, caller().tenant_id, timedelta(days=days))
    days_old = f"{days:,} day{'' if days == 1 else 's'} old"
    gone = "Their content is gone for good; metadata, findings and proofs stay."
    if not count:
        return f"No bundle is deleted today; each is when it is {days_old}. {gone}"
    more = "+" if count > retention.MOST_COUNTED else ""
    number = f"{min(count, retention.MOST_COUNTED):,}{more}"
    many = "" if count == 1 else "s"
    return f"This deletes {number} bundle{many} within minutes, each other when {days_old}. {gone}"


def _state(before: dict[str, Any]) -> str:
    """Return a fingerprint of the settings that the shown effects start from."""
    return sha256(encode(before)).hexdigest()


def _coming(session: Session, *_: object) -> dict[str, Any]:
    settle = services().settings.digest_settle
    return {"coming": schedule.next_digest(session, caller().tenant_id, settle)}


lists.serve(
    blp,
    "mail",
    lambda session, _, *where: sending.rows(session, Digest, caller().tenant_id, *where),
    "/mail",
    endpoint="mail",
    show=schedule.represent,
    named=lambda _: (),
    template="settings/mail",
    beside=_coming,
    does=(None, "GET /v1/digests"),
)

_ALERTED = {
    Kind.WEBHOOK_FAILING: "a webhook fails for five minutes",
    Kind.WEBHOOK_REFUSING: "a webhook's receiver refuses what is sent",
    Kind.WEBHOOK_DISABLED: "a webhook is disabled by the service",
    Kind.RULE_FAILING: "a rule has errors",
    Kind.AUDIT_CHAIN_BROKEN: "the audit chain is broken",
    Kind.HISTORY_ROLLED_BACK: "the database lost a part of its history",
}
_ALERTS = lists.serve(
    blp,
    "alerts",
    list_alert_mails,
    "/alerts",
    endpoint="alert_mails",
    named=lambda _: (),
    template="settings/alerts",
    beside=lambda session, *_: {"kept": alerts.represent(alerts.read(session, caller().tenant_id))},
    shown={"kinds": [(kind.value, said) for kind, said in _ALERTED.items()]},
    does=(None, "PUT /v1/tenant/alerts"),
)


@blp.form("/alerts", Role.ADMIN, again=_ALERTS.page)
def change_alerts(typed: Input) -> Response:
    """Set who is told of what; an address a line."""
    lines = [line.strip() for line in typed.value("emails").splitlines() if line.strip()]
    fields = MultiDict(typed.typed)
    fields.setlist("emails", lines)
    asked = Input(fields).load(AlertsChangeSchema) if lines else {"emails": [], "kinds": [*Kind]}
    forms.do(alerts.change, Policy(asked["emails"], asked["kinds"]), show=alerts.represent)
    count = len(lines)
    many = "1 address is" if count == 1 else f"{count} addresses are"
    told = f"{many} told of troubles." if count else "Nobody is."
    return rendering.done(".alert_mails", told)


def _back(typed: Input) -> str:
    """Return the page to go back to, with all of its filters."""
    return browser.go_on(typed.value("next"), sys.maxsize)


def _zones(typed: Input, status: int = 200) -> Response:
    regions: dict[str, list[str]] = {}
    for name in sorted(zone.names()):
        region, slash, _ = name.partition("/")
        regions.setdefault(region if slash else "Others", []).append(name)
    return rendering.page(
        "settings/time_zone",
        status,
        typed=typed,
        regions=regions,
        next=_back(typed),
    )


zone_blp = Pages("zone", whole_tenant=False)


@zone_blp.page("/time-zone")
def ask_zone() -> Response:
    """Show all time zones; `next` is the page to go back to."""
    return _zones(forms.query())


@zone_blp.form("/time-zone", Role.READ, again=_zones)
def choose_zone(typed: Input) -> AnyResponse:
    """Keep the reader's zone in their browser, and go back."""
    answer = redirect(_back(typed), 303)
    zone.choose(answer, typed.value("zone"))
    return answer


keys_blp = Pages("keys", "/keys", whole_tenant=False)

_TERMS = {
    ExpiresIn.HOUR: "1 hour",
    ExpiresIn.DAY: "1 day",
    ExpiresIn.WEEK: "7 days",
    ExpiresIn.MONTH: "30 days",
    ExpiresIn.QUARTER: "90 days",
    ExpiresIn.YEAR: "1 year",
}


def _pin() -> dict[str, str] | None:
    if (pin := caller().pin) is None:
        return None
    return {"agent_id": ids.text("agt", pin.agent_id), "principal": pin.principal}


def _key_state(key: keys.Minted) -> str:
    row = key.row
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= clock.now() else "active"


_KEYS = lists.serve(
    keys_blp,
    "keys",
    list_keys,
    show=lambda row: {**keys.represent(row), "state": _key_state(row)},
    named=lambda found: filter(None, [_pin(), *(each["pin"] for each in found)]),
    beside=lambda *_: {
        "pin": _pin(),
        "own": ids.text("key", caller().key_id),
        "roles": forms.choices(role for role in Role if caller().role.allows(role)),
    },
    shown={"terms": [(term.value, text) for term, text in _TERMS.items()]},
)


@keys_blp.form("", Role.ADMIN, again=_KEYS.page)
def mint(typed: Input) -> Response:
    """Mint a key, and show_key its text on this page only."""
    made = forms.do(keys.mint, new_key(typed.load(NewKeySchema)))
    with transaction() as session:
        names = rendering.names_in(session, made["pin"] or {})
    return rendering.page(
        "keys/minted",
        key=made,
        names=names,
        does=(f"keys mint NAME --role {made['role']}", "POST /v1/keys"),
        requirement=site.requirement(),
    )


@keys_blp.page("/<key_id>", endpoint="show")
def show_key(key_id: UUID | None) -> Response:
    """Show a key, and the effects of its revocation."""
    with transaction(snapshot=True) as session:
        found = keys.find(session, caller(), key_id)
        effects = keys.effects(session, caller(), found.id)
        key = keys.represent(found)
        names = rendering.names_in(session, key["pin"] or {})
    return rendering.page(
        "keys/one",
        key=key,
        names=names,
        state=_key_state(found),
        own=found.id == caller().key_id,
        effects=effects,
        most=keys.MOST,
        does=("keys revoke {key_id}", "DELETE /v1/keys/{key_id}"),
    )


@keys_blp.form("/<key_id>/revoke", Role.ADMIN)
def revoke(key_id: UUID | None) -> Response:
    """Revoke a key, alone or with all its descendants."""
    args = forms.sent().load(RevokeArgs)
    forms.do(partial(keys.revoke, **args), key_id)
    others = ", with all that descend from it" if args["descendants"] else ""
    return rendering.done(".show", f"The key was revoked{others}.")
