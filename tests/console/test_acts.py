"""What people do in the console, in a real browser: replays seen live, holds, ends of sessions."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, text

from tests.console.conftest import Open
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import revoke
from tests.support.callers.sending import Worker, history, make_findings, make_webhook
from tests.support.faults import LONG_ENOUGH

pytestmark = pytest.mark.browser
expect.set_options(timeout=LONG_ENOUGH * 1000)
FAILED = 3


@pytest.fixture
def webhook(api: ApiOf, worker: Worker) -> dict[str, Any]:
    """Return a webhook to which some deliveries have failed for good."""
    made = make_webhook(api(), description="Incident room")
    make_findings(api(), FAILED)
    assert worker.send(made, 500) == FAILED
    return made


def go_to_replay(page: Page) -> None:
    page.goto("/console/deliveries/groups")
    page.get_by_role("link", name=f"Replay {FAILED}…").click()


def job_on(page: Page) -> dict[str, str]:
    page.wait_for_url("**/console/replays/job_*")
    return {"id": page.url.rpartition("/")[2]}


def test_a_group_is_replayed_with_a_canary_and_seen_to_arrive(
    page: Page, worker: Worker, webhook: dict[str, Any]
) -> None:
    go_to_replay(page)
    expect(page.locator(".lead")).to_contain_text(f"{FAILED} events are sent again")
    page.get_by_label("Canary").fill("one")
    page.get_by_role("button", name="Count again").click()
    expect(page.locator(".error")).to_have_text("Send an integer from 1 to 100.")
    page.get_by_label("Canary").fill("1")
    page.get_by_role("button", name="Count again").click()
    page.get_by_role("button", name=f"Replay {FAILED} events").click()
    job = job_on(page)
    expect(page.locator(".said")).to_have_text("The replay has begun.")
    worker.finish(job)
    expect(page.locator(".lead")).to_contain_text(f"1 of {FAILED} sent, 0 arrived")
    assert worker.send(webhook) == 1
    worker.count_again(job)
    worker.send(webhook)
    worker.count_again(job)
    expect(page.locator(".lead")).to_contain_text(f"It is done: {FAILED} arrived.")
    expect(page.get_by_role("button", name="Stop it")).to_have_count(0)
    page.get_by_role("link", name="Its deliveries").click()
    expect(page.locator("tbody .status.succeeded")).to_have_count(FAILED)
    page.goto("/console/deliveries/groups")
    expect(page.locator(".empty")).to_contain_text("Nothing fails")


def test_a_replay_is_stopped_and_resumed_without_a_script(
    open_browser: Open, tenant: FreshTenant, worker: Worker, webhook: dict[str, Any]
) -> None:
    page = open_browser(tenant.root_key, java_script_enabled=False)
    page.goto("/console/deliveries?status=failed")
    for box in page.get_by_role("checkbox", name="Pick").all():
        box.check()
    page.get_by_role("button", name="Replay what is picked…").click()
    page.get_by_role("button", name=f"Replay {FAILED} events").click()
    job = job_on(page)
    page.locator("summary", has_text="Stop it").click()
    page.get_by_role("button", name="Stop it").click()
    expect(page.locator(".lead")).to_contain_text("It was stopped")
    page.get_by_role("button", name="Go on with it").click()
    worker.finish(job)
    worker.send(webhook)
    worker.count_again(job)
    page.reload()
    expect(page.locator(".lead")).to_contain_text(f"It is done: {FAILED} arrived.")


def test_a_second_click_and_the_way_back_send_nothing_twice(
    page: Page, api: ApiOf, webhook: dict[str, Any]
) -> None:
    page.goto(f"/console/deliveries?webhook_id={webhook['id']}")
    page.locator("tbody td a").first.click()
    page.get_by_role("button", name="Send it again").dblclick()
    expect(page.locator(".lead")).to_contain_text("It waits for its first attempt")
    page.go_back()
    page.go_forward()
    expect(page.locator(".lead")).to_contain_text("It waits for its first attempt")
    kinds = [row["kind"] for row in history(api(), webhook)]
    assert kinds.count("replay") == 1


def test_a_webhook_is_held_and_released_and_every_tab_sees_it(
    page: Page, webhook: dict[str, Any]
) -> None:
    path = f"/console/webhooks/{webhook['id']}"
    page.goto(path)
    other = page.context.new_page()
    other.goto(path)
    page.get_by_role("button", name="Hold").click()
    expect(page.locator(".lead .status")).to_have_text("held")
    expect(other.locator(".lead .status")).to_have_text("held")
    other.get_by_role("button", name="Release").click()
    # Others of this module may have let its receiver fail: that is told too.
    expect(page.locator(".lead .status")).not_to_have_text("held")


def test_a_test_event_is_seen_to_arrive(
    page: Page, worker: Worker, webhook: dict[str, Any]
) -> None:
    page.goto(f"/console/webhooks/{webhook['id']}")
    page.get_by_role("button", name="Send a test event").click()
    expect(page.locator(".lead")).to_contain_text("It waits for its first attempt")
    worker.send(webhook)
    expect(page.locator(".lead")).to_contain_text("It arrived by one attempt")
    expect(page.get_by_role("region", name="Attempt 1")).to_contain_text("HTTP 200")


def test_a_revoked_key_ends_its_session_on_the_open_page(
    open_browser: Open, api: ApiOf, mint: Callable[..., str]
) -> None:
    key = mint("write")
    page = open_browser(key)
    page.goto("/console/deliveries")
    revoke(api, key)
    page.get_by_role("link", name="You are signed out. Sign in again").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_an_open_page_that_gets_no_answer_is_shown_as_stale(page: Page) -> None:
    page.goto("/console/deliveries")
    page.route("**/console/deliveries", lambda route: route.fulfill(status=503))
    page.locator("#main.stale").wait_for()
    page.unroute_all()
    page.locator("#main:not(.stale)").wait_for()


def test_what_is_marked_stays_and_new_rows_wait(
    page: Page, api: ApiOf, worker: Worker, webhook: dict[str, Any]
) -> None:
    held = make_findings(api(), 1)
    assert held
    page.goto(f"/console/deliveries?webhook_id={webhook['id']}")
    row = page.locator("tbody tr").first
    expect(row).to_contain_text("pending")
    row.locator("td[data-label=Status]").evaluate("cell => getSelection().selectAllChildren(cell)")
    worker.send(webhook)
    expect(row).to_contain_text("succeeded HTTP 200")
    assert page.evaluate("getSelection().toString()") == "pending"
    page.evaluate("getSelection().removeAllRanges()")
    expect(row.locator(".status")).to_have_text("succeeded")
    make_findings(api(), 2)
    expect(page.get_by_role("status").get_by_role("button")).to_have_text("2 new")
    expect(page.locator("tbody tr")).to_have_count(FAILED + 1)
    page.get_by_role("button", name="2 new").click()
    expect(page.locator("tbody tr")).to_have_count(FAILED + 3)


def test_a_broken_chain_is_said_on_the_open_page(
    page: Page, admin_engine: Engine, tenant: FreshTenant, forgotten: None
) -> None:
    page.goto("/console/deliveries")
    with admin_engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO audit_breaks (tenant_id, subject, seq, reason, expected, found)"
                " VALUES (:t, '', 3, 'hash', 'a', 'b')"
            ),
            {"t": tenant.id},
        )
    expect(page.get_by_role("alert")).to_contain_text("The audit chain is broken")


def test_a_rule_is_checked_as_it_is_typed_and_what_is_typed_stays(page: Page) -> None:
    page.goto("/console/rules/new")
    condition = page.get_by_label("When (CEL)")
    checked = page.locator('[data-cell="checked"]')
    condition.press_sequentially("recrod.kind == 'refund'")
    expect(checked).to_contain_text("Line 1, column 1: `recrod` is not declared")
    condition.fill("record.kind == 'refund'")
    expect(checked).to_contain_text("It compiles.")
    expect(condition).to_have_value("record.kind == 'refund'")
    assert page.url.endswith("/console/rules/new"), "nothing was sent away"
