"""What a key mints: no longer lived than itself, and revoked with it where that is asked for."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from app.clock import rfc3339
from app.database import Database
from tests.support.callers.api import Api, ApiOf, FreshTenant
from tests.support.callers.making import make_key, refused
from tests.support.database.databases import waiting
from tests.support.faults import until

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
