"""The reader's time zone: chosen once, kept in a cookie; moments are written and read in it."""

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from flask import g, request
from werkzeug.wrappers import Response

from app import clock
from app.console.frame import browser
from app.errors import FieldError, Invalid

UNCHOSEN = "UTC"
_COOKIE = "zone"
_YEAR = 365 * 24 * 3600
# The format of a browser's `datetime-local` control, which knows no zone.
_LOCAL = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?", re.ASCII)
# Older moments are dates. A script refreshes those in between (`ago` in live.js).
_NEAR = timedelta(days=7)
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def chosen() -> ZoneInfo:
    """Return the zone that the reader has chosen; without a choice, UTC."""
    if "zone" not in g:
        named = request.cookies.get(browser.cookie_name(_COOKIE), UNCHOSEN)
        g.zone = ZoneInfo(named if named in names() else UNCHOSEN)
    found: ZoneInfo = g.zone
    return found


def unchosen_cookie() -> str | None:
    """Return the cookie's name while the reader has no zone, for a script that knows theirs."""
    name = browser.cookie_name(_COOKIE)
    return None if name in request.cookies else name


@cache
def names() -> frozenset[str]:
    """Return the names of all zones (IANA time zone database)."""
    return frozenset(available_timezones() - {"localtime", "Factory"})


def choose(answer: Response, name: str) -> None:
    """Keep a zone for this browser; raises `Invalid` for a name that no zone has."""
    if name not in names():
        raise Invalid(FieldError("/zone", "There is no such time zone."))
    browser.set_cookie(answer, _COOKIE, name, _YEAR)


def label(moment: str | datetime, step: str) -> str:
    """Write the beginning of an hour or a day below a chart: `13:00`, `31 Jan`."""
    at = _moment(moment).astimezone(chosen())
    return f"{at:%H:%M}" if step == "hour" else f"{at:%-d %b}"


def words(moment: str | datetime | None) -> str:
    """Write a moment in the reader's zone, to the second: `31 Jan 2026, 13:00:00 CET`."""
    if moment is None:
        return "never"
    at = _moment(moment).astimezone(chosen())
    name = at.tzname() or ""
    return f"{at:%-d %b %Y, %H:%M:%S} {f'UTC{name}' if name[:1] in '+-' else name}"


def day(moment: datetime) -> str:
    """Write the reader's day that a moment lies in: `31 Jan`."""
    return f"{moment.astimezone(chosen()):%-d %b}"


def in_utc(moment: str | datetime) -> str:
    """Write a moment in UTC, to the millisecond: `2026-01-31 12:00:00.123 UTC`."""
    return f"{_moment(moment).astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def ago(moment: str | datetime) -> str:
    """Write how long ago a moment was, or in how long it is; beyond a week, its date.

    `35 s ago`, `in 4 min`, `31 Jan 2026`.
    """
    at = _moment(moment)
    passed = clock.now() - at
    if abs(passed) >= _NEAR:
        return f"{at.astimezone(chosen()):%-d %b %Y}"
    seconds = int(abs(passed).total_seconds())
    near = next((f"{seconds // size} {unit}" for size, unit in _UNITS if seconds >= size), "0 s")
    return f"in {near}" if passed < timedelta() and seconds else f"{near} ago"


def local(text: str) -> str:
    """Return the value of a `datetime-local` control for an RFC 3339 time; other text as it is."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if at.tzinfo is None else f"{at.astimezone(chosen()):%Y-%m-%dT%H:%M:%S}"


def exact(text: str) -> str:
    """Return what a `datetime-local` control sent as RFC 3339; other text as it is.

    Of an hour that the clocks repeat it is the first.
    """
    if _LOCAL.fullmatch(text) is None:
        return text
    try:
        at = datetime.fromisoformat(text).replace(tzinfo=chosen())
        return clock.rfc3339(at)
    except (ValueError, OverflowError):
        return text


def _moment(moment: str | datetime) -> datetime:
    return datetime.fromisoformat(moment) if isinstance(moment, str) else moment
