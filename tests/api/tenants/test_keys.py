"""Keys: minted, pinned, revoked, with what descends from them."""

import threading
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app import ids
from app.clock import rfc3339
from app.database import Database
from app.lib.crypto import api_keys
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import make_key, refused, slug
from tests.support.database.databases import waiting
from tests.support.faults import at_once, until

SHOWN = {
    "id",
    "name",
    "role",
    "pin",
    "expires_at",
    "created_at",
    "created_by",
    "minted_by",
    "last_used_at",
    "revoked_at",
}


@pytest.fixture
def pin(api: ApiOf) -> dict[str, str]:
    """A pin to an agent of the tenant."""
    agent = api().post("/v1/agents", {"name": "the agent"}).json
    return {"agent_id": agent["id"], "principal": "alice@example.com"}


def audited(api: ApiOf, action: str) -> list[dict[str, Any]]:
    entries = api().get(f"/v1/audit?action={action}").json["data"]
    return list(entries)


def test_a_minted_key_is_shown_once_works_and_is_kept_and_audited_without_itself(
    api: ApiOf, tenant: FreshTenant, admin_engine: Engine
) -> None:
    body = {"name": "the auditor's", "role": "write"}
    minted = api().post("/v1/keys", body, headers={"x-request-id": "mint-42"}).json

    assert minted.keys() == SHOWN | {"key"}
    assert api_keys.well_formed(minted["key"])
    seen = api(minted["key"]).get("/v1/keys/self")
    assert seen.status_code == 200
    own = {name: minted[name] for name in SHOWN} | {"tenant_id": ids.text("ten", tenant.id)}
    # This use of it may have been written already.
    assert seen.json == own | {"last_used_at": seen.json["last_used_at"]}
    assert minted["minted_by"] == {"id": minted["created_by"], "name": "root"}
    assert minted["key"] not in api().get("/v1/keys").text
    digest = sha256(minted["key"].encode()).digest()
    with admin_engine.connect() as connection:
        row = connection.execute(
            text("SELECT * FROM api_keys WHERE digest = :digest"), {"digest": digest}
        ).one()
    assert minted["key"] not in str(tuple(row))
    newest = audited(api, "key.mint")[0]
    assert newest["request_id"] == "mint-42"
    assert newest["target"] == {"type": "key", "id": minted["id"]}
    assert newest["details"] == {**body, "pin": None, "expires_at": None}
    assert newest["actor"]["role"] == "admin"
    assert minted["key"] not in str(newest)


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"name": "n", "role": "read", "pin": {"principal": "p"}}, "/pin/agent_id"),
        ({"name": "n", "role": "read", "expires_at": "2020-01-01T00:00:00Z"}, "/expires_at"),
    ],
)
def test_a_wrong_body_is_refused_with_a_pointer(
    api: ApiOf, body: dict[str, Any], pointer: str
) -> None:
    refused = api().post("/v1/keys", body)

    assert refused.status_code == 422
    assert pointer in [error["pointer"] for error in refused.json["errors"]]


def test_a_pin_names_an_agent_of_the_tenant(
    api: ApiOf, app: Flask, other_tenant: FreshTenant
) -> None:
    theirs = Api(app.test_client(), other_tenant.root_key).post("/v1/agents", {"name": "a"}).json
    answers = [
        api().post(
            "/v1/keys",
            {"name": "n", "role": "read", "pin": {"agent_id": agent_id, "principal": "p"}},
        )
        for agent_id in (theirs["id"], f"agt_{'0' * 32}")
    ]

    assert {answer.status_code for answer in answers} == {422}
    assert len({str(answer.json["errors"]) for answer in answers}) == 1
    assert answers[0].json["errors"][0]["pointer"] == "/pin/agent_id"


def test_a_pinned_admin_mints_only_its_own_pin(api: ApiOf, mint: Mint, pin: dict[str, str]) -> None:
    other_agent = api().post("/v1/agents", {"name": "another"}).json["id"]
    pinned = api(mint("admin", pin))
    new = {"name": "n", "role": "read"}

    assert pinned.post("/v1/keys", new | {"pin": pin}).status_code == 201
    for wider in (
        {},
        {"pin": None},
        {"pin": pin | {"principal": "bob@example.com"}},
        {"pin": pin | {"agent_id": other_agent}},
        {"pin": pin | {"agent_id": f"agt_{'0' * 32}"}},
    ):
        refused = pinned.post("/v1/keys", new | wider)
        assert (refused.status_code, slug(refused)) == (403, "wider-than-pin")


def test_a_pinned_key_sees_itself_and_the_keys_with_its_pin(
    api: ApiOf, mint: Mint, pin: dict[str, str]
) -> None:
    make_key(api())
    make_key(api(), pin=pin | {"principal": "bob@example.com"})
    twin = make_key(api(), pin=pin)["id"]
    pinned = api(mint("admin", pin))

    seen = [key["id"] for key in pinned.get("/v1/keys").json["data"]]

    assert seen == [pinned.get("/v1/keys/self").json["id"], twin]


def test_revoking_at_once_from_many_places_and_again_is_audited_once(
    api: ApiOf, tenant: FreshTenant
) -> None:
    key_id = make_key(api())["id"]

    answers = at_once(8, lambda _: api().delete(f"/v1/keys/{key_id}").status_code)

    assert set(answers) == {204}
    assert api().delete(f"/v1/keys/{key_id}").status_code == 204
    assert [entry["target"]["id"] for entry in audited(api, "key.revoke")] == [key_id]
    listed = {row["id"]: row for row in api().get("/v1/keys").json["data"]}
    assert listed[key_id]["revoked_at"] is not None


def test_a_key_cannot_revoke_itself_and_another_admin_may_revoke_the_root_key(
    api: ApiOf, mint: Mint
) -> None:
    root = api().get("/v1/keys/self").json["id"]

    refused = api().delete(f"/v1/keys/{root}")
    assert (refused.status_code, slug(refused)) == (409, "cannot-revoke-own-key")
    assert api().get("/v1/keys/self").status_code == 200

    assert api(mint("admin")).delete(f"/v1/keys/{root}").status_code == 204

    assert api().get("/v1/keys/self").status_code == 401


SOON = datetime(2060, 1, 1, tzinfo=UTC)


def minted(api: Api, **fields: Any) -> dict[str, Any]:
    return make_key(api, role="admin", **fields)


def expiring(api: ApiOf) -> Api:
    return api(minted(api(), expires_at=rfc3339(SOON))["key"])


@pytest.mark.parametrize("later", [timedelta(microseconds=1), timedelta(days=400)])
def test_no_key_outlives_the_one_that_minted_it(api: ApiOf, later: timedelta) -> None:
    body = {"name": "n", "role": "read", "expires_at": rfc3339(SOON + later)}
    answer = expiring(api).post("/v1/keys", body)
    problem = refused(answer, 422, "outlives-parent")
    assert [error["pointer"] for error in problem["errors"]] == ["/expires_at"]
    assert rfc3339(SOON) in problem["detail"]


@pytest.mark.parametrize("fields", [{}, {"expires_at": None}])
def test_without_a_time_a_key_expires_with_the_one_that_minted_it(
    api: ApiOf, fields: dict[str, Any]
) -> None:
    parent = expiring(api)
    child = minted(parent, **fields)
    assert child["expires_at"] == rfc3339(SOON)
    grandchild = minted(api(child["key"]))
    assert grandchild["expires_at"] == rfc3339(SOON)
    (entry,) = api().get("/v1/audit?action=key.mint&limit=1").json["data"]
    assert entry["details"]["expires_at"] == rfc3339(SOON)
    for moment in (SOON, SOON - timedelta(days=1)):
        assert minted(parent, expires_at=rfc3339(moment))["expires_at"] == rfc3339(moment)


def test_descendants_are_revoked_along_where_that_is_asked_for(api: ApiOf) -> None:
    child = minted(api())
    grandchildren = [minted(api(child["key"])) for _ in range(2)]
    leaf = minted(api(grandchildren[0]["key"]))
    sibling = minted(api())
    path = f"/v1/keys/{child['id']}"

    assert api().delete(path).status_code == 204
    assert alive(api, grandchildren[0], leaf) == [True, True]
    # Also those of a key that was revoked before.
    assert api().delete(f"{path}?descendants=true").status_code == 204
    assert alive(api, child, *grandchildren, leaf) == [False] * 4
    assert alive(api, sibling) == [True]

    entries = api().get("/v1/audit?action=key.revoke&order=asc").json["data"]
    assert [entry["target"]["id"] for entry in entries] == [
        each["id"] for each in (child, *grandchildren, leaf)
    ]
    assert [entry["details"].get("descends_from") for entry in entries] == [
        None,
        *[child["id"]] * 3,
    ]
    assert api().delete(f"{path}?descendants=true").status_code == 204
    assert len(api().get("/v1/audit?action=key.revoke").json["data"]) == 4


def test_a_key_cannot_revoke_what_it_descends_from_with_all_descendants(api: ApiOf) -> None:
    child = minted(api())
    grandchild = minted(api(child["key"]))
    path = f"/v1/keys/{child['id']}?descendants="
    refused(api(grandchild["key"]).delete(f"{path}true"), 409, "cannot-revoke-own-key")
    refused(api().delete(f"{path}1"), 422, "validation-failed")
    assert alive(api, child, grandchild) == [True, True]


def test_what_is_minted_while_its_parent_is_revoked_is_revoked_too(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    parent = minted(api())
    answers: list[Any] = []
    with database.transaction(tenant.id) as session:
        # Minting locks the head of the chain last: nothing is committed until this ends.
        session.execute(text("SELECT FROM audit_heads FOR UPDATE"))
        minting = threading.Thread(
            target=lambda: answers.append(
                api(parent["key"]).post("/v1/keys", {"name": "late", "role": "admin"})
            )
        )
        minting.start()
        until(lambda: waiting(database.engine) == 1)
        revoking = threading.Thread(
            target=lambda: answers.append(api().delete(f"/v1/keys/{parent['id']}?descendants=true"))
        )
        revoking.start()
        until(lambda: waiting(database.engine) == 2)
    minting.join()
    revoking.join()
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [201, 204]
    (late,) = [answer.json for answer in answers if answer.status_code == 201]
    assert alive(api, parent, late) == [False, False]


def alive(api: ApiOf, *keys: dict[str, Any]) -> list[bool]:
    return [api(key["key"]).get("/v1/keys/self").status_code == 200 for key in keys]
