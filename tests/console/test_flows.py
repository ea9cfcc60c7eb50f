"""What people do from one page to the next, in a real browser: keys, links, receivers, settings."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.settings import Settings
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.console.conftest import Open
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_record, make_session, uuid_of
from tests.support.callers.sending import Worker, history, make_findings
from tests.support.evidence.packing import opened_runtime
from tests.support.faults import LONG_ENOUGH
from tests.support.servers.receivers import Receiver

pytestmark = pytest.mark.browser
expect.set_options(timeout=LONG_ENOUGH * 1000)


@pytest.fixture(scope="module")
def runtime(settings: Settings) -> Iterator[Runtime]:
    """Return what a worker holds, for a job that is done in this process."""
    with opened_runtime(settings) as opened:
        yield opened


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def unfold(page: Page, name: str) -> None:
    page.locator("summary", has_text=name).click()


def sign_in_again(page: Page, key: str) -> None:
    expect(page.locator(".notice").last).to_contain_text("You are signed out")
    page.get_by_label("API key").fill(key)
    press(page, "Sign in")
    expect(page.get_by_role("heading", name="Your form was not sent")).to_be_visible()


def test_a_key_is_minted_used_and_revoked_which_ends_its_session(
    page: Page, open_browser: Open
) -> None:
    page.goto("/console/keys")
    unfold(page, "Mint a key")
    page.get_by_label("Name").fill("auditor")
    page.get_by_label("Role").select_option("read")
    press(page, "Mint it")
    expect(page.get_by_role("heading", name="The key auditor")).to_be_visible()
    key = page.locator("#key-text").inner_text()
    holder = open_browser(key)
    holder.goto("/console/webhooks")
    expect(holder.locator(".who")).to_contain_text("auditor read")
    expect(holder.locator(".empty")).to_contain_text("There is no webhook yet.")
    expect(holder.get_by_role("link", name="New webhook")).to_have_count(0)
    page.get_by_role("link", name="I have it: all keys").click()
    expect(page.locator("tbody")).not_to_contain_text(key)
    page.get_by_role("link", name="auditor").click()
    expect(page.locator("[data-cell=effects]")).to_contain_text("1 session of this console ends")
    press(page, "Revoke this key")
    expect(page.locator(".lead .status")).to_have_text("revoked")
    holder.get_by_role("link", name="You are signed out. Sign in again").click()
    holder.get_by_label("API key").fill(key)
    press(holder, "Sign in")
    expect(holder.locator(".error")).to_be_visible()


def test_a_share_link_opens_a_record_without_a_key_until_it_is_revoked(
    page: Page, open_browser: Open, api: ApiOf
) -> None:
    record = make_record(api(), make_session(api())["id"], title="Refunded <b>twice</b>")
    page.goto(f"/console/records/{record['id']}")
    page.get_by_label("Opens this record").select_option("3600")
    press(page, "Make a link")
    link = page.locator("#link").inner_text()
    stranger = open_browser()
    stranger.goto(link)
    expect(stranger.get_by_role("heading", level=1)).to_have_text("Refunded <b>twice</b>")
    page.get_by_role("link", name="I have it").click()
    expect(page.locator("#link")).to_have_count(0)
    expect(page.locator("td[data-label=Opened]")).to_have_text("1")
    press(page, "Revoke")
    expect(page.locator(".said")).to_have_text("The link opens nothing any more.")
    expect(page.locator("td[data-label=State]")).to_have_text("revoked")
    answer = stranger.goto(link)
    assert answer is not None
    assert answer.status == 404


def test_the_owner_of_a_receiver_has_it_checked_and_learns_why_it_got_nothing(
    page: Page, api: ApiOf, runtime: Runtime, tenant: FreshTenant, worker: Worker
) -> None:
    with Receiver() as receiver:
        page.goto("/console/webhooks/new")
        page.get_by_label("URL").fill("not a URL")
        page.get_by_label("Description").fill("Incident room")
        press(page, "Make the webhook")
        expect(page.locator("#e-url")).to_be_visible()
        expect(page.get_by_label("Description")).to_have_value("Incident room")
        page.get_by_label("URL").fill(receiver.url())
        press(page, "Make the webhook")
        expect(page.locator("#secret")).to_contain_text("whsec_")
        page.get_by_role("link", name="To the webhook").click()
        press(page, "Check the receiver")
        expect(page.locator(".lead")).to_contain_text("0 of 5 requests are out.")
        page.wait_for_url("**/checks/job_*")
        work_on(runtime, tenant.id, uuid_of(page.url.rpartition("/")[2]))
        expect(page.locator(".lead")).to_contain_text("The receiver does not verify as it should.")
        expect(page.locator("tbody tr")).to_have_count(4)
    (webhook,) = api().get("/v1/webhooks").json["data"]
    make_findings(api(), 1)
    worker.send(webhook, 503)
    page.goto(f"/console/webhooks/{webhook['id']}")
    page.get_by_role("link", name="Why did it not get an event?").click()
    page.get_by_label("Event").fill(history(api(), webhook)[0]["event_id"])
    press(page, "Explain")
    expect(page.locator("main")).to_contain_text("It failed for good after one attempt")
    page.goto(f"/console/webhooks/{webhook['id']}/signature")
    page.get_by_label("Headers").fill("nonsense")
    page.get_by_label("Body, as text").fill("{}\n")
    press(page, "Check it")
    expect(page.locator("#e-headers")).to_contain_text("name: value")
    expect(page.get_by_label("Body, as text")).to_have_value("{}\n")
    page.get_by_label("Headers").fill("webhook-id: evt_1")
    press(page, "Check it")
    expect(page.locator(".notice.grave")).to_contain_text("A receiver refuses it, and should.")


def test_a_session_that_ends_in_the_middle_of_a_form_loses_nothing_of_it(
    page: Page, tenant: FreshTenant, webhook: dict[str, Any], path: str, api: ApiOf
) -> None:
    page.goto(path)
    unfold(page, "Change it")
    page.get_by_label("URL").fill("http://127.0.0.1:9/?a=1&b=2")
    page.get_by_label("Description").fill("")
    page.get_by_label("Requests at once, at most").fill("7")
    page.get_by_label("finding.created").check()
    page.context.clear_cookies()
    press(page, "Save")
    sign_in_again(page, tenant.root_key)
    expect(page.get_by_label("max_in_flight")).to_have_value("7")
    expect(page.get_by_label("description")).to_have_value("")
    press(page, "Send it")
    expect(page.locator(".said")).to_have_text("The webhook was changed.")
    now = api().get(f"/v1/webhooks/{webhook['id']}").json
    assert now["url"].endswith("a=1&b=2")
    assert (now["description"], now["max_in_flight"]) == (None, 7)
    assert now["event_types"] == ["finding.created"]


def test_settings_are_changed_once_what_they_delete_was_read_and_confirmed(
    page: Page, api: ApiOf
) -> None:
    page.goto("/console/settings")
    page.get_by_label("Days for which bundles are kept").fill("30")
    press(page, "See what this does…")
    expect(page.locator(".needs")).to_contain_text("No bundle is deleted today")
    page.get_by_label("Type the tenant's name").fill("another")
    press(page, "Change them")
    expect(page.locator(".error")).to_contain_text("That is not the tenant's name.")
    page.get_by_label("Type the tenant's name").fill("the test's tenant")
    press(page, "Change them")
    expect(page.locator(".said")).to_have_text("The settings were changed.")
    expect(page.get_by_label("Days for which bundles are kept")).to_have_value("30")
    press(page, "See what this does…")
    expect(page.locator(".said")).to_have_text("Nothing was changed: all of it was so.")
    assert api().get("/v1/tenant/settings").json["bundle_retention_days"] == 30
