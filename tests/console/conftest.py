"""What tests of the console share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from tests.e2e.harness import web
from tests.e2e.harness.web import Web
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor, signed_in
from tests.support.callers.sending import make_webhook
from tests.support.faults import LONG_ENOUGH
from tests.support.programs import debian

Open = Callable[..., Page]


@pytest.fixture
def visitor(app: Flask) -> Visitor:
    """Return a browser that is not signed in."""
    return Visitor(app)


@pytest.fixture
def admin(app: Flask, tenant: FreshTenant) -> Visitor:
    """Return a browser that is signed in with the tenant's root key."""
    return signed_in(app, tenant.root_key)


@pytest.fixture
def webhook(api: ApiOf) -> dict[str, Any]:
    """Return a webhook of the tenant, with a description."""
    return make_webhook(api(), description="Incident room")


@pytest.fixture
def path(webhook: dict[str, Any]) -> str:
    """Return the path of the webhook's page."""
    return f"/console/webhooks/{webhook['id']}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Return a real browser."""
    path = debian.chromium()
    assert path is not None, "run: python -m tests.support.programs.debian"
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to start as root.
        flags = ["--no-sandbox"] if os.geteuid() == 0 else []
        launched = playwright.chromium.launch(executable_path=path, args=flags)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def site(
    environ: dict[str, str], app: Flask, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Web]:
    """Return a web process as the Procfile starts it, on the tests' database."""
    folder: Path = tmp_path_factory.mktemp("web")
    with web.serving(environ, folder, by_its_address=True) as served:
        yield served


@pytest.fixture
def open_browser(browser: Browser, site: Web) -> Iterator[Open]:
    """Return an opener of fresh profiles, each with a page; none may meet an error in its console.

    A refused or a violated policy is one; an answer that is no success is not.
    """
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith("Failed to load resource: the"):
            errors.append(message.text)

    def open_page(key: str | None = None, **options: object) -> Page:
        context = browser.new_context(base_url=site.base_url, **options)  # type: ignore[arg-type]
        context.set_default_timeout(LONG_ENOUGH * 1000)
        context.on("console", note)
        context.on("weberror", lambda error: errors.append(str(error.error)))
        contexts.append(context)
        page = context.new_page()
        if key is not None:
            page.goto("/console/sign-in")
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Sign in").click()
            page.get_by_role("button", name="Sign out").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture
def page(open_browser: Open, tenant: FreshTenant) -> Page:
    """Return a page that is signed in with the tenant's root key."""
    return open_browser(tenant.root_key)
