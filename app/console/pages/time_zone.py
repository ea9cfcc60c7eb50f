"""The reader's time zone: its choice, from every page."""

from flask import Blueprint, redirect
from werkzeug.wrappers import Response

from app.console.frame import browser, forms, rendering, zone
from app.console.frame.access import signed_in
from app.core.callers import Role
from app.errors import Invalid

blp = Blueprint("time_zone", __name__)


@blp.get("/time-zone")
@signed_in(Role.READ)
def ask() -> Response:
    """Show all zones; `next` is the page to go back to."""
    return _page(forms.query())


@blp.post("/time-zone")
@signed_in(Role.READ)
def choose() -> Response:
    """Keep the zone, and go back."""
    typed = forms.sent()
    place = typed.value("next")
    answer = redirect(place if browser.is_ours(place) else browser.HOME, 303)
    try:
        zone.choose(answer, typed.value("zone"))
    except Invalid as wrong:
        return _page(typed.refused(wrong), 422)
    return answer


def _page(typed: forms.Input, status: int = 200) -> Response:
    regions: dict[str, list[str]] = {}
    for name in sorted(zone.names()):
        region, slash, _ = name.partition("/")
        regions.setdefault(region if slash else "Others", []).append(name)
    place = typed.value("next")
    return rendering.page(
        "time_zone/index",
        status,
        typed=typed,
        regions=regions,
        next=place if browser.is_ours(place) else browser.HOME,
    )
