"""Legal holds in the console, and the audit chain by who, to what, how and with what outcome."""

import re
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine

from app.database import Database
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.console import Visitor, rows, signed_in
from tests.support.callers.making import make_key, make_record, make_session, pin_of
from tests.support.workers.expiring import Expirer, keep_for

HOLDS, AUDIT = "/console/holds", "/console/audit"


@pytest.fixture
def record(api: ApiOf) -> dict[str, Any]:
    return make_record(api(), make_session(api())["id"])


def test_a_hold_is_placed_from_a_record_s_page_shown_and_released(
    admin: Visitor, api: ApiOf, record: dict[str, Any]
) -> None:
    page = f"/console/records/{record['id']}"
    assert "Under legal hold" not in admin.get(page).text
    form = admin.form(page, HOLDS)
    assert form["record_id"] == record["id"]
    placed = admin.post(HOLDS, {**form, "reason": "Case <b>1</b>"})
    assert placed.status_code == 303
    one = placed.headers["Location"]
    assert "Case &lt;b&gt;1&lt;/b&gt;" in admin.get(one).text
    assert "Under legal hold" in admin.get(page).text
    (hold,) = api().get("/v1/holds").json["data"]
    assert rows(admin.get(f"{HOLDS}?status=standing").text) == [hold["id"]]
    assert "Content under legal hold does not expire" in admin.get("/console/settings").text
    confirmed = admin.get(one).text
    assert "deleted within minutes, for good" in confirmed
    released = admin.send(one, to=f"{one}/release")
    assert released.status_code == 303
    assert api().get(f"/v1/holds/{hold['id']}").json["status"] == "released"
    assert rows(admin.get(f"{HOLDS}?status=standing").text) == []
    assert "Under legal hold" not in admin.get(page).text


def test_who_may_not_hold_sees_no_form_and_a_pinned_key_no_reason(
    app: Flask, api: ApiOf, mint: Mint, admin: Visitor, record: dict[str, Any]
) -> None:
    writer = signed_in(app, mint("write"))
    for page in (HOLDS, f"/console/records/{record['id']}"):
        assert f'method="post" action="{HOLDS}"' not in writer.get(page).text
    api().post("/v1/holds", {"reason": "a secret reason", "record_id": record["id"]})
    session = api().get(f"/v1/sessions/{record['session_id']}").json
    pinned = signed_in(app, make_key(api(), role="admin", pin=pin_of(session))["key"])
    shown = pinned.get(f"/console/records/{record['id']}").text
    assert "Under legal hold" in shown
    assert "a secret reason" not in shown
    assert pinned.get(HOLDS).status_code == 403


def test_a_held_record_is_read_on_its_pages_beyond_its_retention(
    admin: Visitor,
    api: ApiOf,
    record: dict[str, Any],
    database: Database,
    admin_engine: Engine,
    tenant: FreshTenant,
) -> None:
    expirer = Expirer(database, admin_engine, tenant)
    keep_for(api(), 1)
    api().post("/v1/holds", {"reason": "r", "session_id": record["session_id"]})
    expirer.age(record, days=9)
    assert "4711" in admin.get(f"/console/records/{record['id']}").text
    assert "Under legal hold" in admin.get(f"/console/sessions/{record['session_id']}").text
    link = api().post(f"/v1/records/{record['id']}/share-links", {}).json["url"]
    shared = api(None).get(link.partition("records.test")[2]).text
    assert "4711" in shared
    assert "under a legal hold" in shared


def test_the_chain_is_filtered_by_chips_and_a_key_s_page_leads_to_what_it_did(
    app: Flask, admin: Visitor, api: ApiOf, mint: Mint
) -> None:
    reader = mint("read")
    key = api(reader).get("/v1/keys/self").json["id"]
    assert api(reader).post("/v1/keys", {}).status_code == 403
    page = admin.get(f"/console/keys/{key}").text
    (did,) = re.findall(r'href="([^"]+)">What this key did<', page)
    shown = admin.get(did).text
    assert len(rows(shown)) == 1
    assert "access.refused" in shown
    assert "remove" in shown
    both = admin.get(f"{AUDIT}?actor={key}&outcome=success").text
    assert rows(both) == []
    assert both.count('class="unseen"> remove') == 2
    assert len(rows(admin.get(f"{AUDIT}?target={key}&action=key").text)) == 1


@pytest.mark.usefixtures("forgotten")
def test_a_verification_has_an_address_that_verifies_again(admin: Visitor, api: ApiOf) -> None:
    assert "No daily verification has ended yet" in admin.get(AUDIT).text
    verified = admin.send(AUDIT, to=f"{AUDIT}/verify").text
    (address,) = re.findall(r'href="([^"]+)">Verify through this head', verified)
    address = address.replace("&amp;", "&")
    api().patch("/v1/tenant/settings", {"bundle_retention_days": 5})
    again = admin.get(address)
    assert again.status_code == 200
    assert "It leads through entry" in again.text
    digest = address.rpartition("=")[2]
    wrong = admin.get(address.replace(digest, "0" * 64))
    assert (wrong.status_code, "does not hold" in wrong.text) == (409, True)
    assert admin.get(f"{AUDIT}/verify").status_code == 303


def test_a_range_is_exported_and_a_wrong_one_is_shown_again(admin: Visitor) -> None:
    form = admin.form(AUDIT, f"{AUDIT}/export")
    taken = admin.post(f"{AUDIT}/export", {**form, "layout": "events"})
    assert taken.text.startswith('{"at":')
    typed = {"since": "2026-01-02T00:00", "until": "2026-01-01T00:00"}
    wrong = admin.send(AUDIT, typed, to=f"{AUDIT}/export")
    assert (wrong.status_code, "send a moment after since" in wrong.text) == (422, True)
