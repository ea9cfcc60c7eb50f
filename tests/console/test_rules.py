"""Rules in the console: written, checked, tried and switched by forms, as by the API."""

import re
from typing import Any

import pytest
from flask import Flask

from tests.support.callers.api import ApiOf, Mint
from tests.support.callers.console import Visitor, hidden, signed_in
from tests.support.callers.making import make_record, make_session

NEW = "/console/rules/new"
TYPED = {
    "name": "large-refund",
    "on": "record",
    "severity": "high",
    "when": "content.amount > 1000",
    "title": "{{content.amount}} for {{record.principal}}",
    "detail": "",
    "dedupe": "",
    "max_per_hour": "100",
}


@pytest.fixture
def rule(admin: Visitor, api: ApiOf) -> dict[str, Any]:
    assert admin.send(NEW, TYPED).status_code == 303
    (made,) = api().get("/v1/rules").json["data"]
    return dict(made)


def test_a_rule_is_written_mended_tried_and_switched_on(admin: Visitor, api: ApiOf) -> None:
    session = make_session(api())
    for amount in (1, 2000):
        make_record(api(), session["id"], content={"amount": amount})
    wrong = TYPED | {"when": "recrod.kind == 'a'"}

    refused = admin.send(NEW, wrong)
    assert refused.status_code == 422
    assert "Line 1, column 1: `recrod` is not declared; `record` is." in refused.text
    assert "recrod.kind ==" in refused.text
    checked = admin.post(f"{NEW}/check", admin.form(NEW) | TYPED)
    assert "It compiles." in checked.text
    tried = admin.post(f"{NEW}/try", admin.form(NEW) | TYPED)
    assert "<strong>1</strong> of 2 matched" in tried.text
    assert "2000 for alice@example.com" in tried.text
    assert api().get("/v1/rules").json["data"] == []

    fields = admin.form(NEW) | TYPED
    made, again = admin.post(NEW, fields), admin.post(NEW, fields)
    assert made.headers["Location"] == again.headers["Location"]
    place = made.headers["Location"]
    assert admin.post(place, hidden_of(admin, place) | {"enabled": "true"}).status_code == 303
    (stored,) = api().get("/v1/rules").json["data"]
    assert (stored["state"], stored["when"]) == ("on", TYPED["when"])


def test_a_change_makes_a_version_that_has_its_page(admin: Visitor, rule: dict[str, Any]) -> None:
    place = f"/console/rules/{rule['id']}"
    changed = TYPED | {"when": "content.amount > 5"}

    assert admin.post(place, hidden_of(admin, place) | changed).status_code == 303
    first = admin.get(f"{place}/versions/1").text
    assert "content.amount &gt; 1000" in first
    assert f"<code>{rule['id']}</code>" in first
    assert "content.amount &gt; 5" in admin.get(f"{place}/versions/2").text
    assert admin.get(f"{place}/versions/3").status_code == 404


def test_a_ready_rule_is_added_by_one_click_and_off(admin: Visitor, api: ApiOf) -> None:
    path = "/console/rules/examples/card-number"
    added = admin.send("/console/rules", to=path)

    assert added.status_code == 303
    (made,) = api().get("/v1/rules").json["data"]
    assert (made["name"], made["state"]) == ("card-number", "off")
    assert admin.post(f"{path}s", admin.form("/console/rules", path)).status_code == 404


def test_a_backfill_begins_and_a_rule_is_deleted_by_its_name(
    admin: Visitor, api: ApiOf, rule: dict[str, Any]
) -> None:
    place = f"/console/rules/{rule['id']}"
    times = {"since": "2026-01-01T00:00", "until": "2026-01-02T00:00", "rate": ""}

    begun = admin.send(place, times, to=f"{place}/backfill")
    assert begun.status_code == 303
    assert "/console/jobs/job_" in begun.headers["Location"]
    form = admin.form(place, f"{place}/delete")
    assert admin.post(f"{place}/delete", form | {"confirmed": "other"}).status_code == 422
    form = admin.form(place, f"{place}/delete")
    assert admin.post(f"{place}/delete", form | {"confirmed": rule["name"]}).status_code == 303
    assert api().get("/v1/rules").json["data"] == []
    assert admin.get(f"{place}/versions/1").status_code == 200


def test_who_may_write_tries_rules_and_who_may_read_sees_them(
    app: Flask, mint: Mint, rule: dict[str, Any]
) -> None:
    place = f"/console/rules/{rule['id']}"
    writer, reader = signed_in(app, mint("write")), signed_in(app, mint("read"))

    tried = writer.send(place, TYPED, to=f"{place}/try")
    assert "of 0 matched" in tried.text
    assert "Save as" not in writer.get(place).text
    assert "content.amount &gt; 1000" in reader.get(place).text
    assert "<textarea" not in reader.get(place).text


def hidden_of(visitor: Visitor, place: str) -> dict[str, str]:
    """Return the hidden fields that any form of a page has."""
    page = visitor.get(place).text
    found = hidden(page, place)
    assert re.fullmatch(r"\w+", found["_key"])
    return {name: found[name] for name in ("_token", "_key")}
