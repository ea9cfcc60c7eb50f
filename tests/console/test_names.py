"""Names in place of ids: typed into filters and forms, offered where several fit, and shown."""

from typing import Any

import pytest
from flask import Flask

from tests.console.conftest import Open
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.console import Visitor, rows, signed_in
from tests.support.callers.making import (
    make_agent,
    make_finding,
    make_key,
    make_record,
    make_session,
    pin_of,
)
from tests.support.callers.sending import make_webhook

RECORDS = "/console/records"


@pytest.fixture
def desk(api: ApiOf) -> dict[str, Any]:
    """Return an agent beside another with a longer name."""
    make_agent(api(), name="refund desk of the night")
    return make_agent(api(), name="Refund desk", external_id="desk-7")


@pytest.mark.parametrize("typed", ["refund DESK", "desk-7", " Refund desk "])
def test_a_name_of_one_agent_becomes_its_id_in_the_url(
    admin: Visitor, api: ApiOf, desk: dict[str, Any], typed: str
) -> None:
    record = make_record(api(), make_session(api(), desk["id"])["id"])
    make_record(api(), make_session(api())["id"])
    led = admin.get(f"{RECORDS}?agent_id={typed}&kind=")
    assert led.status_code == 303
    assert f"agent_id={desk['id']}" in led.headers["Location"]
    page = admin.get(led.headers["Location"]).text
    assert rows(page) == [record["id"]]
    assert "agent: <bdi>Refund desk</bdi>" in page


def test_a_name_of_several_is_a_choice_and_a_name_of_none_an_error_at_its_field(
    admin: Visitor, desk: dict[str, Any]
) -> None:
    page = admin.get(f"{RECORDS}?agent_id=refund").text
    assert "Several are named so: choose one." in page
    assert f'<option value="{desk["id"]}">Refund desk</option>' in page
    for unknown in ("plum", "agt_1", "%", "---"):
        page = admin.get(f"{RECORDS}?agent_id={unknown}").text
        assert 'id="e-agent_id">Nothing has this name or id.' in page, unknown
        assert 'role="search"' in page


def test_every_field_that_takes_an_id_takes_a_name(admin: Visitor, api: ApiOf) -> None:
    agent = make_agent(api(), name="pear agent")
    session = make_session(api(), agent["id"], title="plum session")
    record = make_record(api(), session["id"], title="quince record")
    finding = make_finding(api(), session["id"], record_id=record["id"], title="medlar finding")
    webhook = make_webhook(api(), description="sloe webhook")
    key = make_key(api(), name="cherry key")
    for path, made in (
        ("/console/findings?agent_id=pear", agent),
        ("/console/findings?session_id=plum", session),
        ("/console/findings?record_id=quince", record),
        ("/console/deliveries?finding_id=medlar", finding),
        ("/console/deliveries?webhook_id=sloe", webhook),
        ("/console/audit?actor=cherry", key),
        ("/console/audit?target=sloe", webhook),
    ):
        led = admin.get(path)
        assert led.status_code == 303, path
        assert led.headers["Location"].endswith(f"={made['id']}"), path
        assert admin.get(led.headers["Location"]).status_code == 200


def test_a_form_takes_a_name_too(admin: Visitor, api: ApiOf, desk: dict[str, Any]) -> None:
    form = admin.form("/console/keys")
    wanted = {**form, "name": "n", "role": "read", "pin.principal": "alice"}
    several = admin.post("/console/keys", {**wanted, "pin.agent_id": "refund"})
    assert several.status_code == 422
    assert f'<option value="{desk["id"]}">Refund desk</option>' in several.text
    minted = admin.post("/console/keys", {**wanted, "pin.agent_id": "desk-7"})
    assert minted.status_code == 200, minted.text
    (key,) = (each for each in api().get("/v1/keys").json["data"] if each["name"] == "n")
    assert key["pin"] == {"agent_id": desk["id"], "principal": "alice"}


def test_a_pinned_key_picks_among_its_own(app: Flask, api: ApiOf, mint: Mint) -> None:
    session = make_session(api(), make_agent(api(), name="pear agent")["id"])
    make_agent(api(), name="pear tree")
    pinned = signed_in(app, mint("read", pin=pin_of(session)))
    led = pinned.get("/console/records?agent_id=pear")
    assert led.headers["Location"].endswith(f"agent_id={session['agent_id']}")
    assert "Nothing has this name" in pinned.get("/console/records?agent_id=tree").text


def test_the_audit_chain_has_names_and_what_was_deleted_leads_to_its_history(
    admin: Visitor, api: ApiOf
) -> None:
    webhook = make_webhook(api(), description="sloe webhook")
    assert api().delete(f"/v1/webhooks/{webhook['id']}").status_code == 204
    page = admin.get(f"/console/audit?target={webhook['id']}").text
    path = f"/console/webhooks/{webhook['id']}"
    assert f'<a href="{path}"><bdi>sloe webhook</bdi></a>' in page
    led = admin.get(path)
    assert led.headers["Location"] == f"/console/deliveries?webhook_id={webhook['id']}"
    assert admin.get(f"/console/webhooks/whk_{'0' * 32}").status_code == 404


def test_the_search_finds_agents_webhooks_keys_and_rules_by_parts_of_their_names(
    admin: Visitor, api: ApiOf, desk: dict[str, Any]
) -> None:
    webhook = make_webhook(api(), description="Pager of the refund desk")
    key = make_key(api(), name="refund-deploy")
    page = admin.get("/console/search?q=FUND").text
    assert {desk["id"], webhook["id"], key["id"]} < set(rows(page))
    assert rows(admin.get("/console/search?q=desk-7&kind=agent_id").text) == [desk["id"]]
    assert admin.get("/console/search?q=desk-7").status_code == 303


@pytest.mark.browser
def test_choices_appear_while_one_types(
    open_browser: Open, tenant: FreshTenant, desk: dict[str, Any]
) -> None:
    page = open_browser(tenant.root_key)
    page.goto(RECORDS)
    page.locator("summary", has_text="Filter").click()
    page.get_by_label("Agent").press_sequentially("refund")
    offered = page.locator(f"datalist option[value='{desk['id']}']")
    offered.wait_for(state="attached")
