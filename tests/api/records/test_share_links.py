"""Share links: minted once, listed without their token, ended at once; openings are audited."""

import hashlib
import json
import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core.keys import keyring
from app.core.records import share_links
from app.database import Database
from app.errors import Invalid
from app.ids import parse
from app.lib.crypto import share_tokens
from app.settings import Settings
from tests.support.callers.api import Api, ApiOf, FreshTenant, serving
from tests.support.callers.making import (
    NOBODY,
    make_record,
    make_share_link,
    pointers,
    refused,
    token_to,
    uuid_of,
)
from tests.support.faults import at_once
from tests.support.workers.expiring import expire_link, make_due


def audited(owner: Api) -> list[dict[str, Any]]:
    entries = owner.get("/v1/audit?limit=200").json["data"]
    return [entry for entry in entries if entry["action"].startswith("share_link.")]


def test_a_link_is_answered_once_with_its_url_and_never_again(
    api: ApiOf, record: dict[str, Any], path: str, admin_engine: Engine
) -> None:
    made = make_share_link(api(), record["id"], expires_in_seconds=60)
    base, _, token = made.pop("url").rpartition("/")
    assert base == "https://records.test/s"
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}", token)
    assert made["record_id"] == record["id"]
    assert made["expires_in_seconds"] == 60
    times = [datetime.fromisoformat(made[name]) for name in ("created_at", "expires_at")]
    assert times[1] - times[0] == timedelta(seconds=60)
    assert (made["active"], made["opened"], made["last_opened_at"]) == (True, 0, None)
    assert api().get(path).json["data"] == [made]
    with admin_engine.connect() as connection:
        kept = connection.execute(text("SELECT * FROM share_links")).all()
        written = connection.scalars(text("SELECT body FROM audit_entries")).all()
    assert token not in str(kept)
    assert token.encode() not in b"".join(map(bytes, written))
    assert hashlib.sha256(token.encode()).digest() in [bytes(row.digest) for row in kept]


def test_without_a_lifetime_a_link_lives_a_day(api: ApiOf, path: str) -> None:
    assert api().post(path).json["expires_in_seconds"] == 86_400
    assert api().post(path, {}).json["expires_in_seconds"] == 86_400


@pytest.mark.parametrize("seconds", [0, -1, 2_592_001, "60", 1.5, True, None])
def test_a_lifetime_is_a_second_to_thirty_days(api: ApiOf, path: str, seconds: Any) -> None:
    wrong = api().post(path, {"expires_in_seconds": seconds})
    assert pointers(wrong) == ["/expires_in_seconds"]


@pytest.mark.parametrize("seconds", [0, share_links.MAX_LIFETIME + 1])
def test_core_holds_the_longest_lifetime_by_itself(
    database: Database, tenant: FreshTenant, record: dict[str, Any], seconds: int
) -> None:
    root = keyring.authenticate(database, tenant.root_key, "r")
    with database.transaction(tenant.id) as session, pytest.raises(Invalid):
        share_links.mint(session, root, uuid_of(record["id"]), seconds, "https://records.test")


def test_a_revoked_link_opens_nothing_from_that_moment(
    api: ApiOf, record: dict[str, Any], path: str
) -> None:
    token, link_id = token_to(api(), record)
    assert api(None).get(f"/s/{token}").status_code == 200
    for _ in range(2):
        assert api().delete(f"{path}/{link_id}").status_code == 204
    assert api(None).get(f"/s/{token}").status_code == 404
    (listed,) = api().get(path).json["data"]
    assert (listed["active"], listed["opened"]) == (False, 1)
    assert listed["revoked_at"]
    actions = [entry["action"] for entry in audited(api())]
    assert actions == ["share_link.revoke", "share_link.open", "share_link.create"]


def test_an_expired_link_is_shown_as_such(
    api: ApiOf, record: dict[str, Any], path: str, admin_engine: Engine
) -> None:
    token, link_id = token_to(api(), record)
    expire_link(admin_engine, link_id)
    (listed,) = api().get(path).json["data"]
    assert (listed["active"], listed["revoked_at"]) == (False, None)
    assert api(None).get(f"/s/{token}").status_code == 404


def test_a_link_is_found_under_its_own_record_only(
    api: ApiOf, record: dict[str, Any], path: str
) -> None:
    sibling = make_record(api(), record["session_id"])
    _, link_id = token_to(api(), sibling)
    unknown = refused(api().delete(f"{path}/shr_{NOBODY}"), 404, "not-found")
    assert refused(api().delete(f"{path}/{link_id}"), 404, "not-found") == unknown
    assert api().get(path).json["data"] == []


def test_a_record_has_a_hundred_active_links_and_no_more(
    api: ApiOf, record: dict[str, Any], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert share_links.MAX_ACTIVE == 100
    monkeypatch.setattr(share_links, "MAX_ACTIVE", 3)
    said = at_once(5, lambda _: api().post(path, {}).status_code)
    assert sorted(said) == [201, 201, 201, 409, 409]
    refused(api().post(path, {}), 409, "too-many-share-links")
    ended = api().get(path).json["data"][0]["id"]
    api().delete(f"{path}/{ended}")
    assert api().post(path, {}).status_code == 201


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
    said = at_once(8, lambda _: api(None).get(f"/s/{token}").status_code)
    assert said == [200] * 8
    assert api().get(path).json["data"][0]["opened"] == 8
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
