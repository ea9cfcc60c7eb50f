"""Openings of share links: counted, audited, and without their token in the log."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core.records import share_links
from app.database import Database
from app.ids import parse
from app.lib.crypto import share_tokens
from app.settings import Settings
from tests.api.records.link_entries import audited
from tests.support.callers.api import ApiOf, FreshTenant, serving
from tests.support.callers.making import refused, token_to
from tests.support.workers.expiring import make_due


def test_every_access_is_counted_and_the_first_of_an_address_a_day_is_audited(
    api: ApiOf, record: dict[str, Any], path: str, admin_engine: Engine
) -> None:
    token, link_id = token_to(api(), record)

    def come(address: str) -> None:
        from_there = {"environ_base": {"REMOTE_ADDR": address}}
        anyone = api(None)
        assert anyone.get(f"/s/{token}", **from_there).status_code == 200
        assert anyone.request("HEAD", f"/s/{token}", **from_there).status_code == 200
        bundle = f"/v1/records/{record['id']}/bundle?share_token={token}"
        assert anyone.get(bundle, **from_there).status_code == 200

    come("192.0.2.1")
    come("192.0.2.2")
    (listed,) = api().get(path).json["data"]
    assert listed["opened"] == 6
    assert listed["last_opened_at"] > listed["created_at"]
    opened = [entry for entry in audited(api()) if entry["action"] == "share_link.open"]
    assert len(opened) == 2
    assert {entry["origin"] for entry in opened} == {"192.0.2.1", "192.0.2.2"}
    for entry in opened:
        assert entry["actor"] == {"type": "link", "id": link_id}
        assert entry["target"] == {"type": "share_link", "id": link_id}
        assert entry["details"] == {"record_id": record["id"]}
    with admin_engine.begin() as connection:
        hashes = connection.scalars(
            text("UPDATE share_link_openings SET day = day - 1 RETURNING address_hash")
        ).all()
    assert share_tokens.address_hash(token, "192.0.2.1") in [bytes(kept) for kept in hashes]
    come("192.0.2.1")
    opened = [entry for entry in audited(api()) if entry["action"] == "share_link.open"]
    assert len(opened) == 3
    assert api().get("/v1/audit/verify").json["status"] == "intact"


def test_openings_at_once_are_all_counted_and_audited_once(
    api: ApiOf, record: dict[str, Any], path: str
) -> None:
    token, _ = token_to(api(), record)
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda _: api(None).get(f"/s/{token}").status_code, range(16)))
    assert said == [200] * 16
    assert api().get(path).json["data"][0]["opened"] == 16
    assert [entry["action"] for entry in audited(api())].count("share_link.open") == 1


def test_a_link_that_is_revoked_between_lookup_and_opening_opens_nothing(
    api: ApiOf, record: dict[str, Any], path: str, database: Database
) -> None:
    token, link_id = token_to(api(), record)
    link = share_links.find_link(database, token)
    assert link is not None
    api().delete(f"{path}/{link_id}")
    with database.transaction(link.tenant_id) as session:
        assert share_links.open_link(session, link, "192.0.2.1", "request") is None
    assert api().get(path).json["data"][0]["opened"] == 0


def test_what_tells_addresses_apart_is_forgotten_with_its_day(
    api: ApiOf, record: dict[str, Any], database: Database, admin_engine: Engine
) -> None:
    token, link_id = token_to(api(), record)
    api(None).get(f"/s/{token}")
    mine = {"id": parse("shr", link_id)}
    count = text("SELECT count(*) FROM share_link_openings WHERE share_link_id = :id")
    with database.across_tenants() as session:
        share_links.forget_old(session)
        assert session.scalar(count, mine) == 1
    with admin_engine.begin() as connection:
        connection.execute(
            text("UPDATE share_link_openings SET day = day - 1 WHERE share_link_id = :id"), mine
        )
    with database.across_tenants() as session:
        assert share_links.forget_old(session) >= 1
        assert session.scalar(count, mine) == 0


def test_no_line_of_the_log_holds_a_token(
    settings: Settings,
    api: ApiOf,
    record: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    token, _ = token_to(api(), record)
    bundle = f"/v1/records/{record['id']}/bundle"
    with serving(replace(settings, log_level="DEBUG")) as served:
        capsys.readouterr()
        served().get(f"/s/{token}")
        served().get(f"{bundle}?share_token={token}")
        served().get(bundle, headers={"x-share-token": token})
        served().get(f"{bundle}s?share_token={token}")
        served().get(f"/s/{token}/more")
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 5
    assert lines[0]["route"] == "/s/<token>"
    assert token not in str(lines)


def test_a_failure_is_told_without_the_token(
    settings: Settings,
    api: ApiOf,
    record: dict[str, Any],
    admin_engine: Engine,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A bundle whose stored bytes were changed does not open for any caller."""
    token, _ = token_to(api(), record)
    with admin_engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE bundles SET bytes = set_byte(bytes, 40, 255 - get_byte(bytes, 40))"
                " WHERE record_id = :id"
            ),
            {"id": parse("rec", record["id"])},
        )
    for log_format in ("json", "console"):
        with serving(replace(settings, log_format=log_format)) as served:
            for path in (f"/s/{token}", f"/v1/records/{record['id']}/bundle?share_token={token}"):
                failed = served().get(path)
                assert failed.status_code == 500
                assert token not in failed.text
    said = capsys.readouterr().out
    assert "CannotOpen" in said
    assert token not in said


def test_the_metadata_of_a_due_record_still_opens(
    api: ApiOf, record: dict[str, Any], admin_engine: Engine
) -> None:
    token, _ = token_to(api(), record)
    make_due(api(), admin_engine, record)
    page = api(None).get(f"/s/{token}")
    assert page.status_code == 200
    assert "The content is gone" in page.text
    assert record["title"] in page.text
    told = api(None).get(f"/s/{token}", headers={"Accept": "application/json"}).json
    assert told["bundle"]["expired"] is True
    gone = api(None).get(told["links"]["bundle"])
    assert gone.status_code == 410


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("path", ["/s/{token}", "/v1/records/{record}/bundle?share_token={token}"])
def test_where_a_chain_is_broken_is_not_told_to_a_link_s_holder(
    api: ApiOf, record: dict[str, Any], tenant: FreshTenant, admin_engine: Engine, path: str
) -> None:
    token, _ = token_to(api(), record)
    with admin_engine.begin() as connection:
        connection.execute(
            text("UPDATE audit_heads SET seq = seq - 1 WHERE tenant_id = :tenant"),
            {"tenant": tenant.id},
        )
    answer = api(None).get(path.format(token=token, record=record["id"]))
    assert refused(answer, 409, "audit-chain-broken").keys() == {
        *("type", "title", "status", "detail")
    }
    told = api().post(f"/v1/records/{record['id']}/share-links", {})
    assert refused(told, 409, "audit-chain-broken").keys() >= {"seq", "expected", "found"}
