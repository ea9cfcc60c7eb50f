"""A record of many steps: page by page, with ways to what failed, to its findings and its proof."""

import re
from typing import Any

import pytest

from tests.console.conftest import Open
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor
from tests.support.callers.making import make_finding, make_record, make_session

COUNT = 20_000


def steps(count: int) -> list[dict[str, Any]]:
    """Return a root and its children, of which number 450 failed."""
    at = "2026-01-31T12:00:00Z"
    step = {"kind": "tool", "started_at": at, "ended_at": at, "status": "ok", "attributes": {}}
    root = {**step, "name": "root", "span_id": "0" * 15 + "1"}
    children = [
        {**step, "name": f"step {n}", "parent_span_id": root["span_id"]}
        for n in range(2, count + 1)
    ]
    children[448]["status"] = "error"
    return [root, *children]


@pytest.fixture
def record(api: ApiOf) -> dict[str, Any]:
    session = make_session(api())
    made = make_record(api(), session["id"], steps=steps(COUNT), content={"text": "word " * 1000})
    make_finding(api(), session["id"], record_id=made["id"], title="medlar finding")
    return made


def test_twenty_thousand_steps_come_page_by_page_and_what_failed_is_one_link_away(
    admin: Visitor, record: dict[str, Any]
) -> None:
    path = f"/console/records/{record['id']}"
    page = admin.get(path).text
    assert len(page) < 500_000
    assert "1 to 200 of 20,000" in page
    for anchor in ("content", "approvals", "steps", "findings", "record", "proof", "share-links"):
        assert f'href="#{anchor}"' in page
        assert f'id="{anchor}"' in page
    assert "medlar finding" in page
    (failed,) = re.findall(r'Failed:\s*<a href="([^"]+)">step 450</a>', page)
    assert failed == f"{path}?steps=400#step-450"
    there = admin.get(f"{path}?steps=400").text
    assert 'id="step-450"' in there
    names = re.findall(r'class="step-name"[^>]*>(.*?)</span>', there)
    assert (names[0], names[-1], len(names)) == ("step 401", "step 600", 200)
    (last,) = set(re.findall(r'href="([^"]+)#steps">Last<', there))
    names = re.findall(r'class="step-name"[^>]*>(.*?)</span>', admin.get(last).text)
    assert names[-1] == "step 20000"
    assert "from 0 to" in admin.get(f"{path}?steps=x").text
    assert "20,001 to 20,000" not in admin.get(f"{path}?steps=20000").text
    # Long content is folded.
    assert re.search(r"<details><summary>[\d,]+ characters</summary>", page)


@pytest.mark.browser
def test_ids_payloads_and_commands_can_be_copied_with_a_script_alone(
    open_browser: Open, tenant: FreshTenant, record: dict[str, Any]
) -> None:
    path = f"/console/records/{record['id']}"
    plain = open_browser(tenant.root_key, java_script_enabled=False)
    plain.goto(path)
    assert plain.get_by_role("button", name="Copy").count() == 0
    page = open_browser(tenant.root_key, permissions=["clipboard-read", "clipboard-write"])
    page.goto(path)
    page.get_by_role("button", name=f"Copy {record['id']}").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == record["id"]
    assert page.locator("footer button.copy").count() == 2
