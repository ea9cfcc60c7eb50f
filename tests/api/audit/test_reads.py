"""With AUDIT_READS the chain says whose key read which record's content, before it leaves."""

from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app.api.http.services import EXTENSION
from tests.api.audit.chains import entries
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import make_record, make_session, refused, token_to

PATHS = ("bundle", "prov.json", "otlp-logs.json", "otlp-traces.json")


@pytest.fixture
def audited(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch AUDIT_READS on."""
    here = app.extensions[EXTENSION]
    monkeypatch.setattr(here, "settings", replace(here.settings, audit_reads=True))


@pytest.fixture
def record(api: ApiOf) -> dict[str, Any]:
    return make_record(api(), make_session(api())["id"])


def reads(api: Api) -> list[tuple[str, str]]:
    found = entries(api, "action=record.read&order=asc&limit=200")
    assert {each["outcome"] for each in found} <= {"success"}
    return [(each["actor"]["id"], each["target"]["id"]) for each in found]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.usefixtures("audited")
def test_content_read_by_a_key_is_one_entry_a_day(
    api: ApiOf, mint: Mint, record: dict[str, Any], admin_engine: Engine, path: str
) -> None:
    reader = api(mint("read"))
    key = reader.get("/v1/keys/self").json["id"]
    url = f"/v1/records/{record['id']}/{path}"
    reader.get(f"/v1/records/{record['id']}")
    reader.request("HEAD", url)
    assert reads(api()) == [], "metadata and no content"
    answers = [reader.get(url) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert reads(api()) == [(key, record["id"])]
    known = reader.get(url, headers={"If-None-Match": answers[0].headers["ETag"]})
    assert known.status_code == 304
    with admin_engine.begin() as connection:
        connection.execute(text("UPDATE record_reads SET day = day - 1"))
    assert reader.get(url, headers={"If-None-Match": answers[0].headers["ETag"]}).status_code == 304
    assert len(reads(api())) == 1
    assert reader.get(url).status_code == 200
    assert reads(api()) == [(key, record["id"])] * 2


@pytest.mark.usefixtures("audited")
def test_a_list_with_content_is_an_entry_for_each_record(
    api: ApiOf, mint: Mint, record: dict[str, Any]
) -> None:
    other = make_record(api(), record["session_id"])
    reader = api(mint("read"))
    key = reader.get("/v1/keys/self").json["id"]
    reader.get("/v1/records")
    assert reads(api()) == []
    for _ in range(2):
        assert len(reader.get("/v1/records?include=content").json["data"]) == 2
    assert sorted(reads(api())) == sorted([(key, record["id"]), (key, other["id"])])


@pytest.mark.usefixtures("audited")
def test_a_link_and_the_public_leave_no_entry_of_a_key(api: ApiOf, record: dict[str, Any]) -> None:
    token, _ = token_to(api(), record)
    url = f"/v1/records/{record['id']}/bundle"
    assert api(None).get(f"{url}?share_token={token}").status_code == 200
    api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    assert api(None).get(url).status_code == 200
    assert reads(api()) == []
    assert api().get(url).status_code == 200
    assert len(reads(api())) == 1, "a key that was sent, though none was needed"


@pytest.mark.usefixtures("audited")
def test_without_its_entry_no_content_leaves(
    api: ApiOf, record: dict[str, Any], admin_engine: Engine, tenant: FreshTenant
) -> None:
    with admin_engine.begin() as connection:
        connection.execute(
            text("DELETE FROM audit_heads WHERE tenant_id = :tenant"), {"tenant": tenant.id}
        )
    for path in PATHS:
        answer = api().get(f"/v1/records/{record['id']}/{path}")
        refused(answer, 409, "audit-chain-broken")
        assert b"4711" not in answer.data
    refused(api().get("/v1/records?include=content"), 409, "audit-chain-broken")


def test_by_default_reads_are_not_audited(api: ApiOf, record: dict[str, Any]) -> None:
    assert api().get(f"/v1/records/{record['id']}/bundle").status_code == 200
    assert reads(api()) == []
