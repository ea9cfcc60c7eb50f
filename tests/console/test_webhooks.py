"""Webhooks in the console: made, changed, explained and deleted by forms, as by the API."""

import re
from typing import Any

import pytest
from flask import Flask

from tests.support.callers.api import ApiOf, Mint
from tests.support.callers.console import Visitor, hidden, signed_in
from tests.support.callers.sending import (
    TWO_TRIES,
    URL,
    Worker,
    history,
    make_findings,
    make_webhook,
)

NEW = "/console/webhooks/new"


@pytest.fixture
def webhook(api: ApiOf) -> dict[str, Any]:
    return make_webhook(api(), description="Incident room", event_types=["finding.created"])


def secret_on(page: str) -> str:
    return page.partition('class="secret" tabindex="0">')[2].partition("<")[0]


def test_a_new_webhook_s_secret_is_shown_on_the_page_that_made_it_and_nowhere_else(
    admin: Visitor, api: ApiOf
) -> None:
    fields = {**admin.form(NEW), "url": URL, "description": "", "event_types": ["finding.created"]}
    made, again = admin.post(NEW, fields), admin.post(NEW, fields)
    assert made.status_code == 201
    assert secret_on(made.text).startswith("whsec_")
    assert secret_on(again.text) == secret_on(made.text)
    (listed,) = api().get("/v1/webhooks").json["data"]
    assert (listed["event_types"], listed["description"]) == (["finding.created"], None)
    assert "whsec_" not in admin.get(f"/console/webhooks/{listed['id']}").text


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("url", "http://192.0.2.1/", 'id="e-url"'),
        ("max_in_flight", "many", "Send an integer from 1 to 64."),
        ("colour", "red", "colour: Unknown field."),
    ],
)
def test_what_is_wrong_stands_beside_its_field_and_the_input_stays(
    admin: Visitor, field: str, value: str, said: str
) -> None:
    fields = {**admin.form(NEW), "url": URL, "description": "kept <b>", field: value}
    refused = admin.post(NEW, fields)
    assert refused.status_code == 422
    assert said in refused.text
    assert "kept &lt;b&gt;" in refused.text


def test_headers_are_typed_in_lines_and_never_shown_again(
    admin: Visitor, api: ApiOf, app: Flask, mint: Mint
) -> None:
    reader = signed_in(app, mint("read"))
    value = "Bearer s3cr3t"
    typed = {"url": URL, "headers": f"Authorization: {value}\r\n\r\nX-Env:prod\r\n"}
    for wrong in ("Authorization", "A: b\nA: c", "Host: x", "A: \x00"):
        refused = admin.send(NEW, {**typed, "headers": wrong})
        assert refused.status_code == 422
        assert "header" in refused.text
    assert admin.send(NEW, typed).status_code == 201
    (made,) = api().get("/v1/webhooks").json["data"]
    assert list(made["headers"]) == ["Authorization", "X-Env"]
    path = f"/console/webhooks/{made['id']}"
    page = admin.get(path).text
    assert "Authorization: ***" in page
    assert "s3cr3t" not in page + reader.get(path).text
    assert "Authorization, X-Env" in reader.get(path).text

    def change(headers: str) -> list[str]:
        form = hidden(admin.get(path).text, f"{path}/retry-now")
        sent = {**form, "url": URL, "headers": headers}
        assert admin.post(path, sent).status_code == 303
        return list(api().get(f"/v1/webhooks/{made['id']}").json["headers"])

    assert change("Authorization: ***\r\nX-New: a") == ["Authorization", "X-New"]
    assert change("") == []


def test_a_change_sets_what_was_typed_and_an_emptied_field_is_null(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], path: str
) -> None:
    form = hidden(admin.get(path).text, f"{path}/retry-now")
    typed = {"url": webhook["url"], "description": "", "max_in_flight": "9", "event_types": ""}
    assert admin.post(path, {**form, **typed}).status_code == 303
    assert "The webhook was changed." in admin.get(path).text
    now = api().get(f"/v1/webhooks/{webhook['id']}").json
    assert [now[name] for name in ("description", "max_in_flight", "event_types")] == [
        None,
        9,
        None,
    ]
    types = {"event_types": ["", "finding.created", "session.completed"]}
    assert admin.post(path, {**form, **types}).status_code == 303
    assert (
        api().get(f"/v1/webhooks/{webhook['id']}").json["event_types"] == types["event_types"][1:]
    )
    assert admin.post(path, {**form, "status": "disabled"}).status_code == 303
    assert "What happens meanwhile can be replayed as skipped" in admin.get(path).text


def test_a_rotated_secret_is_shown_once_with_the_end_of_the_one_before(
    admin: Visitor, path: str
) -> None:
    form = admin.form(path, f"{path}/rotate-secret")
    made = admin.post(f"{path}/rotate-secret", {**form, "overlap_seconds": "60"})
    assert secret_on(made.text).startswith("whsec_")
    assert "an older one signs until" in admin.get(path).text


def test_a_webhook_is_deleted_by_its_name_alone(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], path: str
) -> None:
    form = admin.form(path, f"{path}/delete")
    refused = admin.post(f"{path}/delete", {**form, "name": "Another room"})
    assert refused.status_code == 422
    assert "This is not its name." in refused.text
    assert admin.post(f"{path}/delete", {**form, "name": "Incident room"}).status_code == 303
    assert api().get(f"/v1/webhooks/{webhook['id']}").status_code == 404


def test_an_event_is_explained_and_a_signature_judged(
    admin: Visitor,
    api: ApiOf,
    webhook: dict[str, Any],
    path: str,
    worker: Worker,
) -> None:
    make_findings(api(), 1)
    worker.send(webhook, 503)
    (row,) = history(api(), webhook)
    told = admin.get(f"/console/events/{row['event_id']}").text
    assert "so a delivery was made" in told
    assert "status failed" in told
    pasted = {"headers": "webhook-id: x\r\nnonsense", "body": "{}"}
    form = admin.form(f"{path}/signature")
    wrong = admin.post(f"{path}/signature", {**form, **pasted})
    assert "Write each header once, in a line" in wrong.text
    judged = admin.post(f"{path}/signature", {**form, "headers": "webhook-id: x", "body": "{}"})
    assert judged.status_code == 200
    assert "A receiver refuses it, and should." in judged.text


def test_a_check_of_the_receiver_begins_and_is_watched(admin: Visitor, path: str) -> None:
    begun = admin.send(path, to=f"{path}/check")
    shown = admin.get(begun.headers["Location"])
    assert 'data-live="watch"' in shown.text
    assert "0 of 5 requests are out." in shown.text


def test_the_list_tells_how_each_fares_and_is_sorted_by_it(
    admin: Visitor, api: ApiOf, worker: Worker
) -> None:
    good, bad, idle = (
        make_webhook(api(), description=name, event_types=types)
        for name, types in (
            ("good", ["finding.created"]),
            ("bad", ["finding.created"]),
            ("idle", ["audit.chain_broken"]),
        )
    )
    make_findings(api(), 3)
    worker.send(good, 204)
    worker.send(bad, 500, TWO_TRIES)

    def rows(query: str) -> list[str]:
        return re.findall(r'<tr data-row="(whk_\w+)">', admin.get(f"/console/webhooks{query}").text)

    page = admin.get("/console/webhooks").text
    assert "100.0 %" in page
    assert "0.0 %" in page
    waiting = f"webhook_id={bad['id']}&amp;status=pending&amp;status=retrying&amp;status=sending"
    assert waiting in page
    assert rows("?sort=success")[0] == bad["id"]
    assert rows("?sort=waiting")[0] == bad["id"]
    assert rows("?sort=name") == [bad["id"], good["id"], idle["id"]]
    assert bad["id"] not in rows("?state=ok")
    assert rows("?state=held") == []
    assert 'role="alert"' in admin.get("/console/webhooks?sort=no+such+sort").text
    assert "/console/webhooks?state=ok" in admin.get("/console/overview").text


def test_a_receiver_that_refuses_everything_is_red_wherever_webhooks_are_shown(
    admin: Visitor, api: ApiOf, webhook: dict[str, Any], path: str, worker: Worker
) -> None:
    make_findings(api(), 10)
    worker.send(webhook, 401)
    overview = admin.get("/console/overview").text
    said = "Incident room refuses everything, last with HTTP 401, since"
    assert f'<li class="grave"><span><bdi>{said}' in overview
    assert "no webhook fails" not in overview
    for place in ("/console/webhooks", path):
        page = admin.get(place).text
        assert '<span class="status refusing">refusing</span>' in page
        assert "HTTP 401" in page
