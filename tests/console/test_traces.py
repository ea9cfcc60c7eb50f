"""The front door in the console: what came, what became of it, and a run's steps as a tree."""

import re

from flask import Flask

from tests.api.traces.conftest import assemble
from tests.api.traces.test_front_door import RUN, Assemble, records, send
from tests.support.callers.api import ApiOf, Mint
from tests.support.callers.console import Visitor, signed_in
from tests.support.callers.making import pin_of
from tests.support.spans import AGENT, TOOL, request, span

__all__ = ["assemble"]

PAGE = "/console/traces"


def rows(page: str) -> list[str]:
    """Return the text of each row of a page's table."""
    table = page.partition("<tbody")[2].partition("</tbody>")[0]
    return [re.sub(r"<[^>]+>", " ", row) for row in table.split("<tr ")[1:]]


def figures(page: str) -> list[str]:
    """Return how many traces are waiting, assembled, incomplete, dropped and rejected."""
    return re.findall(r"<dd>(.*?)</dd>", page)


def test_what_came_waits_and_became_of_it_is_shown_with_its_exporter_and_service(
    admin: Visitor, api: ApiOf, assemble: Assemble
) -> None:
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in admin.get(PAGE).text
    send(api(), RUN)
    (row,) = rows(admin.get(PAGE).text)
    for told in ("staged", "desk", "OTel-Tests/1", f"{1:032x}", "waits for its root"):
        assert told in row
    assert figures(admin.get(PAGE).text) == ["1", "0", "0", "0", "0"]
    assemble()
    send(api(), request(span(1, trace=2, attributes={"http.request.method": "GET"})))
    send(api(), request(span(1, trace=0)))
    assemble()
    page = admin.get(PAGE).text
    assert figures(page) == ["0", "1", "0", "1", "1"]
    (record,) = records(api())
    assert f'href="/console/records/{record["id"]}">record</a>' in page
    for status, told in (("dropped", "no span of an agent"), ("rejected", "all zeros")):
        (row,) = rows(admin.get(f"{PAGE}?status={status}").text)
        assert told in row
    assert "No trace is in this state" in admin.get(f"{PAGE}?status=incomplete").text
    assert 'role="alert"' in admin.get(f"{PAGE}?status=maybe").text


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
    assert rows(pinned.get(PAGE).text) == []
    send(api(mint("write", pin=pin)), request(span(1, trace=3, attributes=AGENT)))
    (row,) = rows(pinned.get(PAGE).text)
    assert f"{3:032x}" in row
    assert figures(pinned.get(PAGE).text) == ["1", "0", "0", "0", "0"]
