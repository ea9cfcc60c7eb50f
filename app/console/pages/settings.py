"""The tenant's settings, whose page states the effects of a change before it is saved; and mail."""

from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from typing import Any

from flask import Blueprint, url_for
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response

from app.api.http.answers import encode
from app.api.http.paging import PageArgs, page_of
from app.api.http.services import caller, services, transaction
from app.api.resources.tenant import SettingsChangeSchema
from app.console.frame import forms, rendering
from app.console.frame.access import signed_in
from app.console.frame.forms import Input
from app.core import tenant_settings
from app.core.callers import Role
from app.core.digests import history
from app.core.records import holds, retention
from app.core.records.holds import HoldStatus
from app.core.tenant_settings import Visibility
from app.errors import Invalid

blp = Blueprint("settings", __name__)

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


@blp.get("/settings")
@signed_in(Role.READ, whole_tenant=True)
def index() -> Response:
    """Show the settings."""
    return _page(forms.blank())


@blp.post("/settings")
@signed_in(Role.ADMIN, whole_tenant=True)
def change() -> Response:
    """Show the effects of a change; save it once confirmed, if no setting has changed since."""
    typed = forms.sent()
    try:
        wanted = typed.load(SettingsChangeSchema)
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    with transaction() as session:
        if forms.done_before(session) is not None:
            return rendering.done(url_for(".index"), _CHANGED)
        before = tenant_settings.represent(tenant_settings.read(session, caller().tenant_id))
        changed = {name: value for name, value in wanted.items() if value != before[name]}
        try:
            tenant_settings.check_floor(changed, services().settings.min_retention_days)
        except Invalid as wrong:
            return _page(typed.refused(wrong), 422)
        if not changed:
            return rendering.done(url_for(".index"), "Nothing was changed: all of it was so.")
        # It confirms that bundles are kept for less long.
        is_shorter = _shortens(before, changed)
        name = tenant_settings.read(session, caller().tenant_id).name if is_shorter else None
        if typed.value("_sure") != _state(before) or name not in (None, typed.value("_name")):
            return _ask(session, typed, before, changed, name)
        tenant_settings.change(session, caller(), changed, services().settings.min_retention_days)
        forms.keep(session, None)
    return rendering.done(url_for(".index"), _CHANGED)


@blp.get("/mail")
@signed_in(Role.READ, whole_tenant=True)
def mail() -> Response:
    """List digests, newest first."""
    typed = forms.query()
    found: dict[str, Any] = {"data": [], "next_cursor": None}
    with transaction() as session:
        settle = services().settings.digest_settle
        coming = history.next_digest(session, caller().tenant_id, settle)
        try:
            found = page_of(
                typed.load(PageArgs),
                lambda before, limit: history.rows(session, caller().tenant_id, before, limit),
                history.represent,
            )
        except Invalid as wrong:
            typed = typed.refused(wrong)
    return rendering.page(
        "settings/mail",
        typed=typed,
        found=found,
        coming=history.represent_next(coming),
        does=(None, "GET /v1/digests"),
    )


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
