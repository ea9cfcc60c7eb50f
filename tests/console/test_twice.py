"""Every form of the console in a real browser, sent twice or too late."""

from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from app import ids
from app.core.jobs import job_queue, leases, steps
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import make_record, make_session
from tests.support.callers.sending import (
    TWO_TRIES,
    URL,
    Worker,
    history,
    make_findings,
    make_webhook,
)
from tests.support.faults import LONG_ENOUGH

pytestmark = pytest.mark.browser
expect.set_options(timeout=LONG_ENOUGH * 1000)
TWICE = "This form was sent twice, and done once."


@pytest.fixture(autouse=True)
def unrouted(page: Page) -> Iterator[None]:
    """Let no request that a page makes by itself meet a route while the page is closed."""
    yield
    page.unroute_all(behavior="ignoreErrors")


def press(page: Page, name: str, first: Callable[[Route], object] | None = None) -> None:
    """Press a button; `first` is what happens before its form is sent."""
    button = page.get_by_role("button", name=name, exact=True)
    action = page.locator("form", has=button).get_attribute("action")

    def send(route: Route) -> None:
        # A page that refreshes itself asks for the same address.
        if first is not None and route.request.method == "POST":
            first(route)
        route.continue_()

    page.unroute_all()
    page.route(lambda url: urlsplit(url).path == action, send)
    button.click()


def send_now(route: Route) -> None:
    """Send a form before the browser does, so that its own comes second, as by a second click."""
    route.fetch(max_redirects=0, timeout=LONG_ENOUGH * 1000)


def follow(page: Page, name: str | None = None) -> str:
    """Open where a link leads to, by its name or as the first of a row; return the address."""
    row = page.locator("tbody td[data-label=Created] a").first
    link = row if name is None else page.get_by_role("link", name=name).first
    place = link.get_attribute("href")
    assert place is not None
    page.goto(place)
    return place


def effects(api: Api) -> Counter[str]:
    """Count what a tenant has: deliveries, jobs, and entries of its audit chain by action."""
    found = Counter(each["action"] for each in api.get("/v1/audit?limit=200").json["data"])
    for name in ("deliveries", "jobs"):
        found[name] = len(api.get(f"/v1/{name}?limit=200").json["data"])
    return found


class Doer:
    """Presses buttons twice, and says what that has done."""

    def __init__(self, page: Page, api: Api) -> None:
        self.page = page
        self.api = api

    def __call__(self, button: str, said: str = TWICE) -> dict[str, int]:
        if self.page.locator(".said").count():
            self.page.goto(self.page.url)
        expect(self.page.locator(".said")).to_have_count(0)
        before = effects(self.api)
        press(self.page, button, send_now)
        expect(self.page.locator(".said").first).to_contain_text(said)
        return dict(effects(self.api) - before)


@pytest.fixture
def do(page: Page, api: ApiOf) -> Doer:
    return Doer(page, api())


def test_each_form_of_a_webhook_is_done_once(page: Page, do: Doer, api: ApiOf) -> None:
    page.goto("/console/webhooks/new")
    page.get_by_label("URL").fill(URL)
    assert do("Make the webhook") == {"webhook.create": 1}
    place = follow(page, "To the webhook")
    assert do("Send a test event") == {"deliveries": 1}
    page.go_back()
    press(page, "Send a test event")
    expect(page.locator(".said")).to_have_text("A test event is on its way.")
    (made,) = api().get("/v1/webhooks").json["data"]
    assert len(history(api(), made)) == 2
    for button, done in (
        ("Check the receiver", {"jobs": 1}),
        ("Send now what waits", {"jobs": 1, "deliveries.retry_now": 1}),
        ("Hold", {"webhook.hold": 1}),
        ("Release", {"webhook.release": 1}),
        ("Disable", {"webhook.disable": 1}),
        ("Enable", {"webhook.enable": 1}),
    ):
        page.goto(place)
        assert do(button) == done, button
    for heading, button, done in (
        ("Change it", "Save", {"webhook.update": 1}),
        ("A new secret", "Make a new secret", {"webhook.rotate_secret": 1}),
        ("Delete it", "Delete the webhook", {"webhook.delete": 1}),
    ):
        page.goto(place)
        page.locator("summary", has_text=heading).click()
        if heading == "Change it":
            page.get_by_label("Description").fill("Incident room")
        if heading == "Delete it":
            page.get_by_label("To confirm").fill("Incident room")
        assert do(button) == done, button


def test_each_form_of_deliveries_and_jobs_is_done_once(
    page: Page,
    do: Doer,
    api: ApiOf,
    worker: Worker,
    database: Database,
    tenant: FreshTenant,
) -> None:
    webhook = make_webhook(api())
    make_findings(api(), 3)
    worker.send(webhook, 500, limit=2)
    worker.send(webhook, 500, TWO_TRIES)
    delivery = "/console/deliveries?status="
    page.goto(f"{delivery}retrying")
    follow(page)
    assert do("Send attempt 2 now") == {"delivery.retry_now": 1}
    page.goto(f"{delivery}failed")
    follow(page)
    assert do("Send it again") == {"deliveries": 1, "delivery.replay": 1}
    page.goto("/console/replays/new")
    assert do("Replay 1 event") == {"jobs": 1, "deliveries.replay": 1}
    assert do("Stop it") == {"job.cancel": 1}
    assert do("Go on with it") == {"job.resume": 1}
    with database.transaction(tenant.id) as session:
        job = job_queue.enqueue(session, tenant.id, kind="evidence_pack", args={})
    with database.transaction(tenant.id) as session:
        claimed = leases.claim(session, tenant.id, job.id)
        assert claimed is not None
        assert steps.fail(session, claimed, "The disk is full.", for_good=True)
    page.goto(f"/console/jobs/{ids.text('job', job.id)}")
    assert do("Try it again") == {"job.retry": 1}
    expect(page.locator(".lead .status")).to_have_text("queued")


def test_each_form_of_keys_records_and_settings_is_done_once(
    page: Page, do: Doer, api: ApiOf, tenant: FreshTenant
) -> None:
    page.goto("/console/keys")
    page.locator("summary", has_text="Mint a key").click()
    page.get_by_label("Name").fill("auditor")
    assert do("Mint it") == {"key.mint": 1}
    follow(page, "key_")
    assert do("Revoke this key") == {"key.revoke": 1}
    record = make_record(api(), make_session(api())["id"])
    page.goto(f"/console/records/{record['id']}")
    assert do("Make a link") == {"share_link.create": 1}
    assert do("Revoke") == {"share_link.revoke": 1}
    page.goto("/console/settings")
    page.get_by_label("Mail new findings to").fill("a@b.example")
    press(page, "See what this does…", send_now)
    assert do("Change them") == {"settings.update": 1}
    page.goto("/console/audit")
    assert do("Verify now", "The chain holds.") == {}
    press(page, "Sign out", send_now)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("API key").fill(tenant.root_key)
    press(page, "Sign in", send_now)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
