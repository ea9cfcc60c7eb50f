"""A list under a name and as a file: filtered, whole or visibly cut, and nobody's formula."""

import csv
import json
from typing import Any

import pytest
from flask import Flask
from playwright.sync_api import Page

from app.console.frame import lists
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import Visitor, signed_in
from tests.support.callers.making import (
    make_agent,
    make_finding,
    make_key,
    make_record,
    make_session,
    pin_of,
)

VIEWS, FINDINGS = "/console/views", "/console/findings"
FORMULA = '=HYPERLINK("https://evil.test")'


@pytest.fixture
def session(api: ApiOf) -> dict[str, Any]:
    """Return a session of an agent of its own."""
    return make_session(api(), make_agent(api())["id"])


def rows_of(page: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file, which must be whole."""
    *lines, end = page.splitlines()
    found = list(csv.DictReader(lines))
    assert end == f"# complete: {len(found)} rows"
    return found


def test_a_list_is_downloaded_as_it_is_filtered_page_by_page(
    admin: Visitor, api: ApiOf, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_PART", 2)
    for number in range(5):
        make_finding(api(), session["id"], title=f"Finding {number}", severity="low")
    make_finding(api(), session["id"], title=FORMULA, severity="critical")
    assert len(rows_of(admin.get(f"{FINDINGS}/all.csv").text)) == 6
    low = rows_of(admin.get(f"{FINDINGS}/all.csv?severity=low&limit=1").text)
    assert [each["title"] for each in low] == [f"Finding {number}" for number in (4, 3, 2, 1, 0)]
    (risky,) = rows_of(admin.get(f"{FINDINGS}/all.csv?severity=critical").text)
    assert risky["title"] == f"'{FORMULA}"
    *lines, end = map(json.loads, admin.get(f"{FINDINGS}/all.ndjson").text.splitlines())
    assert [each["title"] for each in lines][:1] == [FORMULA]
    assert lines == api().get("/v1/findings").json["data"]
    assert end == {"complete": True, "rows": 6}
    assert admin.get(f"{FINDINGS}/all.csv?severity=none").status_code == 422


def test_a_file_that_was_cut_has_no_last_line(
    admin: Visitor, api: ApiOf, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "_PART", 2)
    for number in range(3):
        make_finding(api(), session["id"], title=f"Finding {number}")
    monkeypatch.setattr(lists, "_SECONDS", 0)
    for form in ("csv", "ndjson"):
        assert "complete" not in admin.get(f"{FINDINGS}/all.{form}").text


@pytest.mark.parametrize("name", sorted(lists.LISTS))
def test_every_list_is_downloaded_and_a_pinned_key_gets_what_it_may_see(
    name: str, admin: Visitor, api: ApiOf, app: Flask, session: dict[str, Any]
) -> None:
    other = make_session(api(), make_agent(api(), name="other")["id"])
    for each in (session, other):
        make_finding(api(), each["id"])
        make_record(api(), each["id"])
    pinned = signed_in(app, make_key(api(), pin=pin_of(session))["key"])
    told = pinned.get(f"/console/{name}/all.csv")
    every = rows_of(admin.get(f"/console/{name}/all.csv").text)
    if name in ("deliveries", "jobs"):
        assert told.status_code == 403
    else:
        assert (len(rows_of(told.text)), len(every)) == (1, 2)


def test_a_view_is_kept_renamed_and_deleted_for_everybody(
    admin: Visitor, app: Flask, api: ApiOf, tenant: FreshTenant
) -> None:
    reader = signed_in(app, make_key(api())["key"])
    here = f"{FINDINGS}?severity=high&rule=pii.in-log"
    form = admin.form(here, VIEWS)
    assert "Save this view" not in reader.get(here).text
    assert reader.post(VIEWS, form | {"name": "Mine"}).status_code == 403
    made = admin.post(VIEWS, form | {"name": "<b>Grave</b>"})
    assert (made.status_code, made.headers["Location"]) == (303, here)
    shown = reader.get(FINDINGS).text
    assert f'href="?{here.partition("?")[2].replace("&", "&amp;")}"' in shown
    assert "&lt;b&gt;Grave&lt;/b&gt;" in shown
    again = admin.send(here, {"name": "<b>Grave</b>"}, to=VIEWS)
    assert again.status_code == 422
    assert "Another view of this list has this name." in again.text
    wrong = admin.form(here, VIEWS) | {"name": "x", "query": "severity=none"}
    assert admin.post(VIEWS, wrong).status_code == 422
    listed = admin.get(VIEWS).text
    view = listed.partition("/rename")[0].rpartition("/")[2]
    rename = f"{VIEWS}/{view}/rename"
    assert admin.send(VIEWS, {"name": "Red"}, to=rename).status_code == 303
    assert ">Red<" in reader.get(FINDINGS).text
    delete = f"{VIEWS}/{view}/delete"
    assert admin.send(VIEWS, to=delete).status_code == 303
    assert ">Red<" not in reader.get(FINDINGS).text


@pytest.mark.browser
def test_keys_move_search_and_open_and_leave_who_types_alone(
    page: Page, api: ApiOf, session: dict[str, Any]
) -> None:
    for number in range(3):
        make_record(api(), session["id"], title=f"Record {number}")
    page.goto("/console/records")
    focused = "document.activeElement.closest('tr')?.rowIndex"
    for key, row in (("j", 1), ("j", 2), ("k", 1), ("j", 2)):
        page.keyboard.press(key)
        assert page.evaluate(focused) == row
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/records/rec_*")
    page.keyboard.press("g")
    page.keyboard.press("f")
    page.wait_for_url("**/console/findings")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type("j?g")
    assert page.locator("#find").input_value() == "j?g"
    page.locator("#main").focus()
    page.keyboard.press("Control+k")
    page.keyboard.type("webh")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/webhooks")
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    assert "next and previous row" in dialog.inner_text()
    dialog.get_by_role("checkbox").uncheck()
    page.keyboard.press("Escape")
    assert dialog.count() == 0
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") != "find"
    page.keyboard.press("Control+k")
    assert page.get_by_role("dialog").count() == 1


@pytest.mark.browser
def test_the_palette_finds_what_the_search_finds(
    page: Page, api: ApiOf, session: dict[str, Any]
) -> None:
    record = make_record(api(), session["id"], title="Paid back")
    page.goto("/console/overview")
    page.keyboard.press("Control+k")
    page.keyboard.type(record["id"])
    offer = page.get_by_role("option", name="Paid back")
    offer.click()
    page.wait_for_url(f"**/console/records/{record['id']}")
