"""Agents, sessions and the front door: found, named, a run's steps, what became of traces."""

import re
from typing import Any

import pytest
from flask import Flask

from app.core.delivery.history import delivery_list
from tests.api.traces.conftest import assemble
from tests.api.traces.test_front_door import RUN, Assemble, records, send
from tests.support.callers.api import ApiOf, Mint
from tests.support.callers.console import Visitor, signed_in
from tests.support.callers.making import (
    make_agent,
    make_finding,
    make_record,
    make_session,
    pin_of,
)
from tests.support.spans import AGENT, TOOL, request, span

__all__ = ["assemble"]

AGENTS, SESSIONS, TRACES = "/console/agents", "/console/sessions", "/console/traces"


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
    for query in ("q=SEV", "q=desk-7", "external_id=desk-7"):
        assert re.findall(r'data-row="(\w+)"', admin.get(f"{AGENTS}?{query}").text) == [named["id"]]
    assert re.findall(r'data-row="(\w+)"', admin.get(f"{SESSIONS}?external_id=chat/4711").text) == [
        of_own["id"]
    ]
    assert "<h1><bdi>chat/4711</bdi></h1>" in admin.get(f"{SESSIONS}/{of_own['id']}").text
    page = admin.get(f"{AGENTS}/{session['agent_id']}").text
    assert "1 record and 0 findings; the last record" in page
    for page in (f"{AGENTS}/{session['agent_id']}", f"{SESSIONS}/{session['id']}"):
        assert record["id"] in admin.get(page).text
    for query, there in (("status=open", True), ("status=completed", False)):
        assert (session["id"] in admin.get(f"{SESSIONS}?{query}").text) is there
    assert "e-status" in admin.get(f"{SESSIONS}?status=maybe").text
    assert "No record was made" in admin.get(f"{SESSIONS}/{make_session(api())['id']}").text
    for page in (AGENTS, SESSIONS):
        assert admin.get(f"{page}/{'0' * 32}").status_code == 404


def test_a_session_with_more_findings_than_are_searched_says_so(
    admin: Visitor, api: ApiOf, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_list, "MOST_SUBJECTS", 1)
    said = "too many findings to count what was sent"
    for many in (False, True):
        make_finding(api(), session["id"])
        page = admin.get(f"{SESSIONS}/{session['id']}")
        assert page.status_code == 200
        assert (said in page.text) is many


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
    assert "1 record and" in page
    assert "Of Bob" not in page
    assert foreign["agent_id"] not in pinned.get(AGENTS).text
    for path in (f"{SESSIONS}/{other['id']}", f"{AGENTS}/{foreign['agent_id']}"):
        assert pinned.get(path).status_code == 404


def rows_of(page: str) -> list[str]:
    """Return the text of each row of a page's table."""
    table = page.partition("<tbody")[2].partition("</tbody>")[0]
    return [re.sub(r"<[^>]+>", " ", row) for row in table.split("<tr ")[1:]]


def figures(page: str) -> list[str]:
    """Return how many traces are waiting, assembled, incomplete, dropped and rejected."""
    return re.findall(r"<dd>(.*?)</dd>", page)


def test_what_came_waits_and_became_of_it_is_shown_with_its_exporter_and_service(
    admin: Visitor, api: ApiOf, assemble: Assemble
) -> None:
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in admin.get(TRACES).text
    send(api(), RUN)
    (row,) = rows_of(admin.get(TRACES).text)
    for told in ("staged", "desk", "OTel-Tests/1", f"{1:032x}", "waits for its root"):
        assert told in row
    assert figures(admin.get(TRACES).text) == ["1", "0", "0", "0", "0"]
    assemble()
    send(api(), request(span(1, trace=2, attributes={"http.request.method": "GET"})))
    send(api(), request(span(1, trace=0)))
    assemble()
    page = admin.get(TRACES).text
    assert figures(page) == ["0", "1", "0", "1", "1"]
    (record,) = records(api())
    assert f'href="/console/records/{record["id"]}">record</a>' in page
    for status, told in (("dropped", "no span of an agent"), ("rejected", "all zeros")):
        (row,) = rows_of(admin.get(f"{TRACES}?status={status}").text)
        assert told in row
    assert "No trace fits these filters" in admin.get(f"{TRACES}?status=incomplete").text
    assert 'role="alert"' in admin.get(f"{TRACES}?status=maybe").text


def test_a_run_s_steps_are_a_tree_whatever_their_parents_are(
    admin: Visitor, api: ApiOf, assemble: Assemble
) -> None:
    send(
        api(),
        request(
            span(1, attributes={**AGENT, "session.id": "chat-8"}, seconds=9),
            span(4, 2, attributes=TOOL, start=3),
            span(2, 1, attributes=TOOL, start=2),
            span(3, 1, attributes=TOOL, start=1),
            # Of each other's kin: they have no way from the root.
            span(5, 6, attributes=TOOL, start=4),
            span(6, 5, attributes=TOOL, start=5),
        ),
    )
    assemble()
    (record,) = records(api())
    page = admin.get(f"/console/records/{record['id']}").text
    tree = re.findall(r'class="what (d\d)"><span class="step-name"[^>]*>(.*?)</span>', page)
    assert tree == [
        ("d0", "span 1"),
        ("d1", "span 3"),
        ("d1", "span 2"),
        ("d2", "span 4"),
        ("d0", "span 5"),
        ("d1", "span 6"),
    ]
    assert "Content not captured" in page
    (session,) = api().get("/v1/sessions?external_id=chat-8").json["data"]
    timeline = admin.get(f"/console/sessions/{session['id']}").text
    assert re.findall(r'class="what (d\d)"', timeline) == ["d0", "d1", "d2", "d2", "d3", "d1", "d2"]


def test_content_that_was_sent_is_not_said_to_be_missing(
    admin: Visitor, api: ApiOf, assemble: Assemble
) -> None:
    send(api(), RUN)
    prompted = {"span.type": "interaction", "user_prompt": "Refund it.", "gen_ai.system": "x"}
    send(api(), request(span(1, trace=2, attributes=prompted)))
    redacted = {**AGENT, "user_prompt": "<REDACTED>", "input.value": "__REDACTED__"}
    send(api(), request(span(1, trace=3, attributes={**redacted, "llm.token_count.prompt": 20})))
    assemble()
    for record in records(api()):
        page = admin.get(f"/console/records/{record['id']}").text
        assert "How it was done" in page
        is_missing = record["labels"]["trace_id"] == f"{3:032x}"
        assert ("Content not captured" in page) is is_missing


def test_a_pinned_key_sees_what_keys_with_its_pin_sent(
    app: Flask, api: ApiOf, mint: Mint, assemble: Assemble
) -> None:
    send(api(), RUN)
    assemble()
    (record,) = records(api())
    pin = pin_of(record)
    pinned = signed_in(app, mint("read", pin=pin))
    assert rows_of(pinned.get(TRACES).text) == []
    send(api(mint("write", pin=pin)), request(span(1, trace=3, attributes=AGENT)))
    (row,) = rows_of(pinned.get(TRACES).text)
    assert f"{3:032x}" in row
    assert figures(pinned.get(TRACES).text) == ["1", "0", "0", "0", "0"]
