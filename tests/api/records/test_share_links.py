"""Share links: minted once, listed without their token, ended at once."""

import hashlib
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core.keys import keyring
from app.core.records import share_links
from app.database import Database
from app.errors import Invalid
from tests.api.records.link_entries import audited
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import (
    NOBODY,
    make_record,
    make_share_link,
    pointers,
    refused,
    token_to,
    uuid_of,
)
from tests.support.workers.expiring import expire_link


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
    with ThreadPoolExecutor(5) as pool:
        said = list(pool.map(lambda _: api().post(path, {}).status_code, range(5)))
    assert sorted(said) == [201, 201, 201, 409, 409]
    refused(api().post(path, {}), 409, "too-many-share-links")
    ended = api().get(path).json["data"][0]["id"]
    api().delete(f"{path}/{ended}")
    assert api().post(path, {}).status_code == 201
