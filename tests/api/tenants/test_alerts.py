"""Who is told of troubles: set, read, refused, audited; over HTTP and in the console."""

from typing import Any

import pytest
from flask import Flask

from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.console import signed_in

PATH = "/v1/tenant/alerts"


def test_addresses_and_kinds_are_set_and_audited_without_the_addresses(api: ApiOf) -> None:
    all_kinds = api().get(PATH).json["kinds"]
    assert len(all_kinds) == 6
    asked = {"emails": ["b@example.com", "a@example.com"], "kinds": ["webhook.failing"]}
    told = {"emails": ["a@example.com", "b@example.com"], "kinds": ["webhook.failing"]}
    for _ in range(2):
        answer = api().request("PUT", PATH, json=asked)
        assert (answer.status_code, answer.json) == (200, told)
    assert api().get(PATH).json == told
    assert api().request("PUT", PATH, json={"emails": []}).json == {
        "emails": [],
        "kinds": all_kinds,
    }
    entries = api().get("/v1/audit?action=alerts.").json["data"]
    assert [each["details"]["addresses"] for each in entries] == [0, 2]
    assert "example.com" not in str(entries)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/emails"),
        ({"emails": ["nonsense"]}, "/emails/0"),
        ({"emails": ["a@example.com", "A@example.com"]}, "/emails"),
        ({"emails": [f"{n}@example.com" for n in range(11)]}, "/emails"),
        ({"emails": ["a@example.com"], "kinds": []}, "/kinds"),
        ({"emails": ["a@example.com"], "kinds": ["weather"]}, "/kinds/0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(
    api: ApiOf, body: dict[str, Any], pointer: str
) -> None:
    answer = api().request("PUT", PATH, json=body)
    assert answer.status_code == 422
    assert [each["pointer"] for each in answer.json["errors"]] == [pointer]
    assert api().get(PATH).json["emails"] == []


def test_the_console_sets_the_same_and_says_what_is_wrong(
    app: Flask, api: ApiOf, tenant: FreshTenant
) -> None:
    admin = signed_in(app, tenant.root_key)
    form = admin.form("/console/alerts")
    kinds = ["webhook.failing", "rule.failing"]
    fields = {**form, "emails": "a@example.com\r\n\r\n b@example.com", "kinds": kinds}
    assert admin.post("/console/alerts", fields).status_code == 303
    assert api().get(PATH).json == {"emails": ["a@example.com", "b@example.com"], "kinds": kinds}
    wrong = admin.post("/console/alerts", {**fields, "emails": "a@example.com\nnonsense"})
    assert wrong.status_code == 422
    assert 'id="e-emails"' in wrong.text
    assert "nonsense" in wrong.text
