"""Agents and sessions in the console: found, named where their ids stand; a session's way."""

import re
from typing import Any

import pytest
from flask import Flask

from tests.support.callers.api import ApiOf, Mint
from tests.support.callers.console import Visitor, signed_in
from tests.support.callers.making import (
    make_agent,
    make_finding,
    make_record,
    make_session,
    pin_of,
)

AGENTS, SESSIONS = "/console/agents", "/console/sessions"


def step(second: int, **fields: Any) -> dict[str, Any]:
    """Return a step of one second that begins with the `second`."""
    return {
        "name": f"step {second}",
        "kind": "execute_tool",
        "started_at": f"2026-01-31T12:00:{second:02}Z",
        "ended_at": f"2026-01-31T12:00:{second + 1:02}Z",
        "status": "ok",
    } | fields


@pytest.fixture
def session(api: ApiOf) -> dict[str, Any]:
    """Return a session of an agent with a name of its own."""
    agent = make_agent(api(), name="refund-desk")
    return make_session(api(), agent["id"], title="Refund the zebra")


def test_agents_and_sessions_show_what_they_did(
    admin: Visitor, api: ApiOf, session: dict[str, Any]
) -> None:
    idle = make_agent(api(), name="idle-desk")
    record = make_record(api(), session["id"], title="Paid back")
    listed = admin.get(AGENTS).text
    assert f'<a href="{AGENTS}/{session["agent_id"]}"><bdi>refund-desk</bdi></a>' in listed
    counts = dict(
        re.findall(
            r'data-row="(\w+)".*?data-label="Records" class="number">(.*?)<', listed, re.DOTALL
        )
    )
    assert counts == {session["agent_id"]: "1", idle["id"]: "0"}
    named = make_agent(api(), name="seven", external_id="desk-7")
    of_own = make_session(api(), named["id"], external_id="chat/4711")
    for query in ("name=seven", "external_id=desk-7"):
        assert re.findall(r'data-row="(\w+)"', admin.get(f"{AGENTS}?{query}").text) == [named["id"]]
    assert re.findall(r'data-row="(\w+)"', admin.get(f"{SESSIONS}?external_id=chat/4711").text) == [
        of_own["id"]
    ]
    assert "<h1><bdi>chat/4711</bdi></h1>" in admin.get(f"{SESSIONS}/{of_own['id']}").text
    assert "1 record, the last" in admin.get(f"{AGENTS}/{session['agent_id']}").text
    for page in (f"{AGENTS}/{session['agent_id']}", f"{SESSIONS}/{session['id']}"):
        assert record["id"] in admin.get(page).text
    for query, there in (("status=open", True), ("status=completed", False)):
        assert (session["id"] in admin.get(f"{SESSIONS}?{query}").text) is there
    assert "e-status" in admin.get(f"{SESSIONS}?status=maybe").text
    assert "No record was made" in admin.get(f"{SESSIONS}/{make_session(api())['id']}").text
    for page in (AGENTS, SESSIONS):
        assert admin.get(f"{page}/{'0' * 32}").status_code == 404


def test_an_agent_and_a_session_have_their_names_wherever_their_ids_stand(
    admin: Visitor, api: ApiOf, session: dict[str, Any]
) -> None:
    record = make_record(api(), session["id"])
    finding = make_finding(api(), session["id"], record_id=record["id"])
    key = api().post("/v1/keys", {"name": "n", "role": "read", "pin": pin_of(session)}).json
    api().patch(f"/v1/agents/{session['agent_id']}", {"name": "refund-desk 2"})
    of_agent = f'<a href="{AGENTS}/{session["agent_id"]}"><bdi>refund-desk 2</bdi></a>'
    of_session = f'<a href="{SESSIONS}/{session["id"]}"><bdi>Refund the zebra</bdi></a>'
    for path in (
        "/console/records",
        f"/console/records/{record['id']}",
        "/console/findings",
        f"/console/findings/{finding['id']}",
    ):
        page = admin.get(path).text
        assert of_agent in page, path
        assert of_session in page, path
    for path in (SESSIONS, "/console/keys", f"/console/keys/{key['id']}", "/console/audit"):
        assert of_agent in admin.get(path).text, path
    assert of_session in admin.get(f"{AGENTS}/{session['agent_id']}").text
    chips = admin.get(f"/console/records?agent_id={session['agent_id']}&session_id={session['id']}")
    assert re.search(r"agent: <bdi>refund-desk 2</bdi>", chips.text)
    assert "Earlier name" in admin.get(f"{AGENTS}/{session['agent_id']}").text


def test_a_session_s_way_goes_over_its_records_in_order_without_idle_time(
    admin: Visitor, api: ApiOf, session: dict[str, Any]
) -> None:
    first = make_record(api(), session["id"], title="first", steps=[step(4), step(0)])
    late = {"started_at": "2026-01-31T15:00:00Z", "ended_at": "2026-01-31T15:00:05Z"}
    make_record(api(), session["id"], title="second", steps=[step(0, **late, status="error")])
    make_record(api(), session["id"], title="third", occurred_at="2026-01-31T15:30:00Z")
    page = admin.get(f"{SESSIONS}/{session['id']}").text
    names = re.findall(r'class="step-name"[^>]*>(.*?)</span>', page)
    assert names == ["first", "step 0", "step 4", "second", "step 0", "third"]
    bars = re.findall(r'<rect class="\w+" x="([\d.]+)" width="([\d.]+)"', page)
    # Five seconds each, and the three hours between them have no length.
    assert bars == [
        ("0.0", "500.0"),
        ("0.0", "100.0"),
        ("400.0", "100.0"),
        ("500.0", "500.0"),
        ("500.0", "500.0"),
        ("996.0", "4.0"),
    ]
    assert re.findall(r'class="idle">(.*?)<', page) == ["3.0 h later", "30 min later"] or (
        re.findall(r'class="idle">(.*?)<', page) == ["3.0 h later", "29.9 min later"]
    )
    assert page.count("status failed") == 2
    assert f"/console/records/{first['id']}#step-2" in page
    (older,) = re.findall(
        r'rel="next" href="([^"]+)"', admin.get(f"{SESSIONS}/{session['id']}?limit=2").text
    )
    rest = admin.get(older.replace("&amp;", "&")).text
    assert re.findall(r'class="step-name"[^>]*>(.*?)</span>', rest) == ["third"]


def test_a_pinned_key_sees_its_own_agent_and_sessions(
    app: Flask, mint: Mint, api: ApiOf, session: dict[str, Any]
) -> None:
    other = make_session(api(), session["agent_id"], principal="bob@example.com", title="Of Bob")
    foreign = make_session(api())
    for each in (session, other, foreign):
        make_record(api(), each["id"])
    pinned = signed_in(app, mint("read", pin=pin_of(session)))
    assert session["id"] in pinned.get(SESSIONS).text
    page = pinned.get(f"{AGENTS}/{session['agent_id']}").text
    assert "1 record," in page
    assert "Of Bob" not in page
    assert foreign["agent_id"] not in pinned.get(AGENTS).text
    for path in (f"{SESSIONS}/{other['id']}", f"{AGENTS}/{foreign['agent_id']}"):
        assert pinned.get(path).status_code == 404
