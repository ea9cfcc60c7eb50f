"""Every page in a real browser: readable, reachable, narrow, and inert to what strangers write."""

import re
from collections.abc import Callable
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from flask import Flask
from playwright.sync_api import Page

from tests.console.conftest import Open
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.console import paths
from tests.support.callers.making import make_agent, make_record, make_session
from tests.support.callers.matrix import World
from tests.support.callers.sending import Worker, make_findings, make_webhook

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>\u202e{{7*7}}"
GRAVE = ("serious", "critical")
# What else axe-core looks at is the same in the dark.
SCHEMES: dict[Literal["light", "dark"], dict[str, Any]] = {
    "light": {},
    "dark": {"runOnly": ["color-contrast"]},
}


@pytest.fixture
def every_page(app: Flask, api: Callable[..., Api], worker: Worker) -> list[str]:
    """Return every page of a tenant with one of everything, in hostile words."""
    world = World(api())
    webhook = make_webhook(api(), description=HOSTILE)
    make_findings(api(), 3)
    worker.send(webhook, 500, error=HOSTILE)
    return paths(app, world)


def test_every_page_is_accessible_narrow_and_inert(page: Page, every_page: list[str]) -> None:
    assert len(every_page) > 8
    axe = Axe()
    wrong: list[tuple[str, ...]] = []
    for path in every_page:
        page.goto(path)
        for scheme, rules in SCHEMES.items():
            page.emulate_media(color_scheme=scheme)
            found = axe.run(page, options=rules).response["violations"]
            wrong += [
                (path, scheme, each["id"], each["nodes"][0]["html"])
                for each in found
                if each["impact"] in GRAVE
            ]
        page.set_viewport_size({"width": 320, "height": 640})
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 320:
            wrong.append((path, "width", str(width), ""))
        page.set_viewport_size({"width": 1280, "height": 800})
        assert page.evaluate("window.hacked") is None, path
    assert wrong == []


def test_every_page_is_reached_by_the_keyboard_and_says_where_the_reader_is(page: Page) -> None:
    page.goto("/console/deliveries")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.locator("nav [aria-current=page]").inner_text() == "Deliveries"


def test_the_navigation_is_one_row_that_stays_in_its_place(
    page: Page, every_page: list[str]
) -> None:
    found = set()
    for path in every_page:
        page.goto(path)
        links = page.locator("nav[aria-label=Pages] ul").first.locator("a").all()
        boxes = [link.bounding_box() for link in links]
        found.add(tuple((box["x"], box["y"], box["width"]) for box in boxes if box is not None))
    found.discard(())  # a page that is not there has none
    assert len(found) == 1
    assert len({y for _, y, _ in found.pop()}) == 1


def test_a_long_text_bends_no_row_and_is_whole_on_hover_and_with_the_focus(
    page: Page, api: Callable[..., Api]
) -> None:
    session = make_session(api(), make_agent(api())["id"], title="Desk")
    whole = "Quarterly reconciliation of every supplier account " * 9
    for title in ("short", whole.strip(), "x" * 500, "short"):
        make_record(api(), session["id"], title=title)
    page.goto("/console/records")
    rows = page.locator("tbody tr")
    heights = [row.bounding_box() for row in rows.all()]
    short, long, _, other = (box["height"] for box in reversed(heights) if box is not None)
    assert abs(short - other) < 1
    assert long < 2 * short
    cut = page.locator(f'[title="{whole.strip()}"]')
    page.locator("tbody tr").nth(2).get_by_role("link").first.focus()
    assert cut.evaluate("cell => cell.scrollHeight === cell.clientHeight")
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_a_row_s_moment_is_exact_on_hover_and_focus_and_a_script_offers_the_browser_s_zone(
    open_browser: Open, tenant: FreshTenant, every_page: list[str]
) -> None:
    del every_page
    plain = open_browser(tenant.root_key, java_script_enabled=False)
    plain.goto("/console/findings")
    row = plain.locator("tbody tr").first
    shown, exact = row.locator("time.ago").first, row.locator(".tip").first
    assert re.match(r"\d+ (s|min) ago", shown.inner_text())
    assert exact.inner_text().endswith(" UTC")

    def width() -> float:
        box = exact.bounding_box()
        assert box is not None
        return box["width"]

    assert width() < 2
    shown.hover()
    assert width() > 50
    plain.locator("h1").hover()
    assert width() < 2
    row.locator("a").first.focus()
    plain.keyboard.press("Shift+Tab")
    plain.keyboard.press("Tab")
    assert width() > 50
    # A browser that tells its zone where one signs in is shown times in it from then on.
    far = open_browser(tenant.root_key, timezone_id="Europe/Paris")
    far.goto("/console/findings")
    assert "Europe/Paris" in far.locator("footer").inner_text()
    far.get_by_role("button", name="UTC", exact=True).click()
    assert far.locator(".tip").first.inner_text().endswith(" UTC")
    far.get_by_role("button", name="Europe/Paris").click()
    assert re.search(r" CES?T$", far.locator(".tip").first.inner_text())
