"""The served API documentation, and the headers and log line of every request."""

import json
import re
from dataclasses import replace

import pytest

from app.settings import Settings
from tests.support.callers.api import ApiOf, FreshTenant, serving


def test_the_root_leads_to_the_console(api: ApiOf) -> None:
    assert api(None).get("/").headers["Location"] == "/console"


def test_the_documentation_needs_nothing_from_elsewhere(api: ApiOf) -> None:
    page = api(None).get("/docs")

    assert page.status_code == 200
    policy = page.headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert re.findall(r"<script(?! src=\"[a-z/.-]+\" defer></script>)", page.text) == []
    for reference in set(re.findall(r'(?:src|href)="(/[^"]+)"', page.text)):
        with api(None).get(reference) as file:
            assert file.status_code in (200, 303), reference


def test_the_documentation_has_every_operation_and_finds_them_by_words(api: ApiOf) -> None:
    document = api(None).get("/openapi.json").json
    page = api(None).get("/docs").text
    operations = [
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method in item
        if method != "parameters"
    ]
    for method, path in operations:
        assert re.search(rf">{method}</span> <code>{re.escape(path)}</code>", page), (method, path)
    assert page.count('class="filters op"') == len(operations)
    assert "curl -X POST https://records.test/v1/webhooks " in page
    assert "{&#34;url&#34;:" in page
    found = api(None).get("/docs?q=Rotate+SECRET").text
    assert found.count('class="filters op"') == 1
    assert "/v1/webhooks/{webhook_id}/rotate-secret" in found
    assert "No operation has these words" in api(None).get("/docs?q=<script>").text
    assert "<script>" not in api(None).get("/docs?q=<script>").text


def test_the_document_names_the_address_and_the_ways_to_send_a_key(api: ApiOf) -> None:
    document = api(None).get("/openapi.json").json

    assert document["openapi"].startswith("3.1")
    assert document["servers"] == [{"url": "https://records.test"}]
    assert document["components"]["securitySchemes"].keys() == {"bearer", "apiKey"}
    assert document["security"] == [{"bearer": []}, {"apiKey": []}]


def test_a_body_is_documented_as_required_exactly_where_one_is(api: ApiOf) -> None:
    document = api(None).get("/openapi.json").json
    required = {
        f"{method} {path}": operation["requestBody"].get("required", False)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method != "parameters" and "requestBody" in operation
    }
    assert {route for route, is_required in required.items() if not is_required} == {
        "patch /v1/agents/{agent_id}",
        "patch /v1/rules/{rule_id}",
        "patch /v1/tenant/settings",
        "patch /v1/webhooks/{webhook_id}",
        "put /v1/agents/by-external-id/{external_id}",
        "post /v1/deliveries/replay",
        "post /v1/records/{record_id}/share-links",
        "post /v1/traces",
        "post /v1/webhooks/{webhook_id}/replay",
        "post /v1/webhooks/{webhook_id}/retry-now",
        "post /v1/webhooks/{webhook_id}/rotate-secret",
    }
    for route, is_required in required.items():
        method, _, path = route.partition(" ")
        sent = api().request(method.upper(), path.replace("{", "").replace("}", ""))
        assert (sent.status_code == 400) == is_required, route


def test_every_answer_carries_the_security_headers(api: ApiOf) -> None:
    for answer in (api(None).get("/docs"), api(None).get("/nothing"), api().get("/v1/keys")):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "max-age=" in answer.headers["Strict-Transport-Security"]


def test_https_is_demanded_only_where_the_service_has_it(settings: Settings) -> None:
    with serving(replace(settings, base_url="http://127.0.0.1:8000")) as api:
        assert "Strict-Transport-Security" not in api().get("/healthz").headers


def test_answers_to_a_key_are_stored_nowhere(api: ApiOf) -> None:
    assert api().get("/v1/keys").headers["Cache-Control"] == "no-store"
    assert api(None).get("/v1/keys").headers["Cache-Control"] == "no-store"


def test_a_request_is_one_line_without_anything_secret(
    settings: Settings, tenant: FreshTenant, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(settings) as api:
        caller = api(tenant.root_key)
        key_id = caller.get("/v1/keys/self").json["id"]
        capsys.readouterr()
        caller.get("/v1/keys?cursor=hidden", headers={"x-request-id": "line-1"})
        caller.delete("/v1/keys/hidden-id")
        api().get("/v1/keys", headers={"x-api-key": "svc_hidden"})

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    first, second, third = [line for line in lines if line["event"] == "request"]
    assert first["request_id"] == "line-1"
    assert (first["method"], first["route"], first["status"]) == ("GET", "/v1/keys", 422)
    assert first["key_id"] == key_id
    assert first["duration_ms"] > 0
    assert second["route"] == "/v1/keys/<key_id>"
    assert third["key_id"] is None
    assert "hidden" not in str(lines)
    assert tenant.root_key not in str(lines)
