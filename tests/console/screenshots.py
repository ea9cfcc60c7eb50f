"""`make screenshots`: pictures of the pages of a running `make demo`: two widths, light and dark.

All go into `.data/screenshots`, and those that the README shows into `docs/images`.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.support.programs import debian

ROOT = Path(__file__).resolve().parents[2]
ALL, SHOWN = ROOT / ".data" / "screenshots", ROOT / "docs" / "images"
WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
README = ("failures-desktop-light", "webhook-desktop-dark")


def main() -> int:
    """Take all pictures; return 1 without a running service."""
    if "SERVICE_API_KEY" not in os.environ:
        print("make screenshots: run `make demo` in another terminal first", file=sys.stderr)
        return 1
    for folder in (ALL, SHOWN):
        folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=debian.chromium(), args=flags)
        page = browser.new_page(base_url=os.environ["BASE_URL"])
        for name, path in _signed_in(page):
            _take(page, name, path)
        browser.close()
    for name in README:
        shutil.copy(ALL / f"{name}.png", SHOWN / f"{name}.png")
    print(f"{len(list(ALL.iterdir()))} pictures are in {ALL.relative_to(ROOT)}")
    return 0


def _signed_in(page: Page) -> Iterator[tuple[str, str]]:
    """Sign in, and yield a name and the path of each page."""
    yield "sign-in", "/console/sign-in"
    page.goto("/console/sign-in")
    page.get_by_label("API key").fill(os.environ["SERVICE_API_KEY"])
    page.get_by_role("button", name="Sign in").click()
    listed = [each for _, group in _links(page, 0) if page.goto(group) for each in _links(page, 1)]
    yield from listed
    yield "preview", "/console/replays/new?status=failed"
    yield "delivery", _first(page, "/console/deliveries?status=failed")
    for name, path in listed:
        if name != "deliveries" and (inner := _first(page, path)):
            yield name.removesuffix("s"), inner


def _links(page: Page, row: int) -> list[tuple[str, str]]:
    """Return the name and path of each link in a row of the navigation."""
    links = page.locator("nav[aria-label=Pages] ul").nth(row).locator("a").all()
    return [(link.inner_text().lower(), link.get_attribute("href") or "") for link in links]


def _first(page: Page, path: str) -> str:
    """Return where the first row of a list leads to; nothing for an empty list."""
    page.goto(path)
    link = page.locator("tbody tr").last.locator("a").first
    return (link.get_attribute("href") or "") if link.count() else ""


def _take(page: Page, name: str, path: str) -> None:
    for width, (across, down) in WIDTHS.items():
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": across, "height": down})
            page.goto(path)
            page.screenshot(path=ALL / f"{name}-{width}-{scheme}.png", full_page=width == "phone")


if __name__ == "__main__":
    sys.exit(main())
