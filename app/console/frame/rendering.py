"""Rendering a page: its template in the common frame, its headers, and its ETag."""

import base64
import html
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from flask import Response, current_app, g, redirect, request, url_for
from flask.sansio.blueprints import BlueprintSetupState
from sqlalchemy.orm import Session
from werkzeug.wrappers import Response as AnyResponse

from app import ids
from app.api.http import answers
from app.api.http.documentation import write_ids
from app.api.http.services import caller, services
from app.console.frame import assets, browser, forms, navigation, zone
from app.core import lookup, tenants
from app.core.callers import Caller, Role
from app.core.keys import keys
from app.evidence.page import rendering
from app.evidence.page.rendering import CONTENT_CHARACTERS, indented
from app.evidence.times import unix_nanoseconds
from app.lib.text_sanitizer import visible

CONTENT_TYPE = "text/html; charset=utf-8"
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z)", re.ASCII)
_CELL = re.compile(r"<(t[dh])([^>]*)>(.*?)</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_KINDS = {"#": "number", "~": "long", "-": "free"}
# So many characters are never cut.
_FITS = {"": 32, "long": 16}
# A redirect follows at once.
_MESSAGE_SECONDS = 60
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    # With no-referrer a form's Origin is null, and the CSRF check could not tell its site.
    "Referrer-Policy": "same-origin",
    "X-Robots-Tag": "noindex, nofollow",
}
# Placeholder for the form's idempotency key, which differs each time, while the ETag is computed.
_KEY_PLACE = forms.new_key()
# The kinds of objects that have names.
_NAMED = ("agt_", "ses_", "rec_", "fnd_", "whk_", "key_", "rul_", "exp_", "hld_", "usr_", "ten_")
# The templates that have macros; each may use those of the ones before.
_PARTS = (
    *("parts", "charts", "holds/parts", "sessions/parts", "deliveries/parts", "people/parts"),
    *("audit/parts", "rules/editor"),
)
_AGO = re.compile(r'(?<=<time class="ago" )[^<]*')


def page(
    template: str, status: int = 200, headers: Mapping[str, str] | None = None, **shown: Any
) -> Response:
    """Render `templates/console/<template>.html`; 304 for a page that the browser has.

    A template in a folder belongs to the entry of the navigation whose blueprint has that name.
    `does` are the command and the request that do the same, with what the path names in braces.
    """
    if "does" in shown and request.view_args:
        shown["does"] = [each and each.format(**own()) for each in shown["does"]]
    kept = None if browser.refreshes_itself() else _kept_message()
    # An error stands under no success, be it this form's of before or another's.
    message = (_sent_twice() or kept) if status < 400 else None
    context = {**_frame(template.partition("/")[0]), "message": message, **shown}
    current_app.update_template_context(context)
    templates = current_app.jinja_env
    # Every macro is at hand in every template.
    for each in _PARTS:
        module = templates.get_template(f"console/{each}.html").make_module(context)
        context = {**vars(module), **context}
    text = templates.get_template(f"console/{template}.html").render(context)
    lasting = text.replace(_KEY_PLACE, "")
    if browser.refreshes_itself():
        # The script that asks keeps them as they are now.
        lasting = _AGO.sub("", lasting)
    etag = sha256(lasting.encode()).hexdigest()
    if status == 200 and request.method in ("GET", "HEAD") and answers.is_current(etag):
        return answers.not_modified(etag)
    text = text.replace(_KEY_PLACE, forms.new_key())
    answered = Response(text, status, {**_HEADERS, **(headers or {})}, content_type=CONTENT_TYPE)
    answered.set_etag(etag)
    if kept:
        browser.set_cookie(answered, "said", "", 0)
    return answered


def done(page: str, message: str, **inside: Any) -> AnyResponse:
    """Redirect after a form was carried out; a page, by its URL or endpoint, shows `message` once.

    An endpoint's page is of what this request's path names, unless `inside` names another. For a
    repeated form `message` may no longer be true: the page says that it came twice.
    """
    if not page.startswith("/"):
        endpoint = f"{request.blueprint}{page}" if page.startswith(".") else page
        arguments = next(current_app.url_map.iter_rules(endpoint)).arguments
        named = {name: text for name, text in own().items() if name in arguments}
        page = url_for(endpoint, **{**named, **inside})
    answered = redirect(page, 303)
    value = base64.urlsafe_b64encode((_sent_twice() or message).encode()).decode()
    browser.set_cookie(answered, "said", value, _MESSAGE_SECONDS)
    return answered


def own() -> dict[str, str]:
    """Return what the request's path names, its ids as they are written; `-` for what is none."""
    given = request.view_args or {}
    named = {name: "-" if value is None else value for name, value in given.items()}
    write_ids("", named)
    return named


def attached(answer: Response, name: str = "") -> Response:
    """Have a browser save an answer as a file; without a `name` the request's path has it."""
    name = name or "-".join(own().values())
    answer.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer


def taken(take: Callable[[], Response]) -> AnyResponse:
    """Return a file whose taking is audited; for another site's link its page, to take it there.

    Its page too while a job makes the file.
    """
    if not browser.is_from_here():
        return done(".show", "Another page has asked for this file. Take it here, if you want it.")
    answered = take()
    if answered.status_code == 202:
        return done(".show", "The evidence pack is being made: ask for it again in a moment.")
    return answered


def names_in(session: Session, *rows: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the objects whose ids stand in rows (or filters), by id, but their own.

    One statement, however many rows.
    """
    texts = (value for row in rows for name, value in row.items() if name != "id")
    wanted = {text for text in texts if isinstance(text, str) and text.startswith(_NAMED)}
    people = [ids.parse("usr", text) for text in wanted if text.startswith("usr_")]
    named = keys.names(session, caller().tenant_id, filter(None, people)) if people else {}
    if (tenant := ids.text("ten", caller().tenant_id)) in wanted:
        named[tenant] = tenants.name(session, caller().tenant_id)
    return lookup.titles(session, caller(), wanted) | named


def address(query: Mapping[str, Sequence[str]], endpoint: str, **inside: Any) -> str:
    """Return the URL of a page with a query, whose names could clash with `url_for`'s arguments."""
    asked = urlencode(query, doseq=True)
    return f"{url_for(endpoint, **inside)}{'?' if asked else ''}{asked}"


def moments(sentence: str) -> list[str]:
    """Split a sentence at each timestamp in it: every second part is a timestamp.

    An impossible date, such as in a user's text, stays text.
    """
    text, *rest = _MOMENT.split(sentence)
    parts = [text]
    for moment, after in zip(rest[::2], rest[1::2], strict=True):
        try:
            datetime.fromisoformat(moment)
        except ValueError:
            parts[-1] += moment + after
        else:
            parts += (moment, after)
    return parts


def thousands(number: int) -> str:
    """Write a whole number: `1,204`."""
    return f"{number:,}"


def duration(milliseconds: float | None) -> str:
    """Write how long something took: `85 ms`, `1.4 s`, `3 min`."""
    if milliseconds is None:
        return "unknown"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def cells(row: str, columns: Sequence[str]) -> str:
    """Name the cells of a row after their columns, and cut text that does not fit its cell.

    The whole is its title, and shown while it has the focus. See the macro `table`.
    """
    left = iter(columns)

    def named(cell: re.Match[str]) -> str:
        column, (tag, attributes, inside) = next(left), cell.groups()
        kind, label = _KINDS.get(column[:1], ""), html.escape(column.lstrip("#~-"))
        text = " ".join(_TAG.sub(" ", inside).replace('"', "&quot;").split())
        if len(text) > _FITS.get(kind, len(text)) and 'class="tip"' not in inside:
            focus = "" if "<a " in inside else ' tabindex="0"'
            inside = f'<div class="cut" title="{text}"{focus}>{inside}</div>'
        attributes += (label and f' data-label="{label}"') + (kind and f' class="{kind}"')
        return f"<{tag}{attributes}>{inside}</{tag}>"

    return _CELL.sub(named, row)


def took(session: Mapping[str, Any]) -> str:
    """Write how long a session took, as its GET answers it."""
    began, ended = (unix_nanoseconds(session[at]) for at in ("created_at", "completed_at"))
    return rendering.duration((began, ended))


def pretty(value: object) -> str:
    """Write indented JSON, truncated for a page, with invisible characters as code points."""
    cut = indented(value, CONTENT_CHARACTERS)
    return f"{cut.text}\n… (cut here; the API answers with all of it)" if cut.more else cut.text


def add_filters(state: BlueprintSetupState) -> None:
    """Register the console's template filters with the application."""
    state.app.jinja_env.filters.update(
        address=address,
        page_of=navigation.page_of,
        words=zone.words,
        in_utc=zone.in_utc,
        ago=zone.ago,
        day=zone.day,
        local=zone.local,
        moments=moments,
        thousands=thousands,
        duration=duration,
        pretty=pretty,
        took=took,
        place=navigation.place_of,
        cells=cells,
        visible=visible,
    )
    state.app.jinja_env.globals.update(zone=zone.chosen, meant_by=forms.meant_by)


def _frame(section: str) -> dict[str, Any]:
    """Return the variables of the base template."""
    holder: Caller | None = g.get("caller")
    places = navigation.groups_for(holder) if holder else {}
    return {
        "caller": holder,
        "key_name": g.get("key_name"),
        "form_token": g.get("form_token", ""),
        "form_key": _KEY_PLACE,
        "places": places,
        "sees_all": holder is not None and holder.pin is None,
        "current": navigation.current(places, section),
        "notices": g.get("notices", []),
        "version": assets.version,
        "unchosen_zone": zone.unchosen_cookie(),
        "here": request.full_path.rstrip("?") if request.method == "GET" else request.path,
        "base_url": services().settings.base_url,
        "may": lambda role: holder is not None and holder.role.allows(Role(role)),
    }


def _sent_twice() -> str | None:
    return "This form was sent twice, and done once." if g.get("sent_twice") else None


def _kept_message() -> str | None:
    """Return the message of the last form, if it redirected here."""
    kept = request.cookies.get(browser.cookie_name("said"))
    try:
        return base64.b64decode(kept or "", altchars=b"-_", validate=True).decode() or None
    except ValueError:
        return None
