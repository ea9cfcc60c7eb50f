"""When keys were used last, who minted them, for how long, and their names beside audit entries."""

import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import event, text

from app import clock
from app.api.http.services import EXTENSION
from app.core.keys import keyring
from app.core.keys.usage import KeyUsage
from app.database import Database
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import make_key, make_session, pin_of, pointers


def write_usage(app: Flask) -> None:
    app.extensions[EXTENSION].keyring._usage.write()  # as its thread does


def shown(api: ApiOf, key: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(
        each for each in api().get("/v1/keys").json["data"] if each["id"] == key["id"]
    )
    return found


def test_a_key_shows_the_minute_of_its_last_use(api: ApiOf, app: Flask) -> None:
    used, unused = make_key(api()), make_key(api())
    before = clock.now()
    assert api(used["key"]).get("/v1/agents").status_code == 200
    write_usage(app)

    at = datetime.fromisoformat(shown(api, used)["last_used_at"])
    assert (at.second, at.microsecond) == (0, 0)
    assert before - timedelta(minutes=1) < at <= clock.now()
    assert shown(api, unused)["last_used_at"] is None


def test_a_use_goes_back_in_time_never_and_forward_by_minutes(
    database: Database, api: ApiOf
) -> None:
    minted, usage = make_key(api()), KeyUsage(database)
    caller = keyring.authenticate(database, minted["key"], "r")
    written = []
    for seconds in (600.0, 7200.0, 0.0):
        usage._used[caller.tenant_id, caller.key_id] = time.monotonic() - seconds
        usage.write()
        written.append(datetime.fromisoformat(shown(api, minted)["last_used_at"]))
    assert written[0] == written[1] < written[2]


def test_many_requests_of_a_key_are_one_statement(database: Database, tenant: FreshTenant) -> None:
    usage = KeyUsage(database)
    caller = keyring.authenticate(database, tenant.root_key, "r")
    said: list[str] = []
    event.listen(database.engine, "checkout", lambda *_: said.append("checkout"))
    for _ in range(1000):
        usage.note(caller)
    usage.close()
    # The thread writes as it begins and as it ends.
    assert len(said) <= 2


def test_a_key_that_has_ended_is_not_used(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    minted = make_key(api())
    usage = KeyUsage(database)
    caller = keyring.authenticate(database, minted["key"], "r")
    assert api().delete(f"/v1/keys/{minted['id']}").status_code == 204
    usage.note(caller)
    usage.close()
    with database.transaction(tenant.id) as session:
        last = text("SELECT last_used_at FROM api_keys WHERE id = :id")
        assert session.scalar(last, {"id": caller.key_id}) is None


def test_a_key_says_who_minted_it_as_far_as_the_pin_allows(api: ApiOf) -> None:
    admin = make_key(api(), name="ops", role="admin")
    assert admin["minted_by"]["name"] == "root"
    pin = pin_of(make_session(api()))
    pinned = make_key(api(admin["key"]), pin=pin)
    assert pinned["minted_by"] == {"id": admin["id"], "name": "ops"}
    own = api(pinned["key"]).get("/v1/keys/self").json
    assert own["minted_by"] == {"id": admin["id"], "name": None}
    assert api().get("/v1/keys/self").json["minted_by"] is None


@pytest.mark.parametrize(("term", "hours"), [("1h", 1), ("7d", 168), ("365d", 8760)])
def test_a_key_may_be_minted_for_a_usual_term(api: ApiOf, term: str, hours: int) -> None:
    before = clock.now()
    ends = datetime.fromisoformat(make_key(api(), expires_in=term)["expires_at"])
    assert abs(ends - before - timedelta(hours=hours)) < timedelta(minutes=1)


def test_a_term_is_one_of_the_usual_and_stands_alone(api: ApiOf) -> None:
    body = {"name": "n", "role": "read"}
    assert pointers(api().post("/v1/keys", body | {"expires_in": "8d"})) == ["/expires_in"]
    both = body | {"expires_in": "1d", "expires_at": "2100-01-01T00:00:00Z"}
    assert pointers(api().post("/v1/keys", both)) == ["/expires_in"]
    short = make_key(api(), role="admin", expires_in="1h")
    answer = api(short["key"]).post("/v1/keys", body | {"expires_in": "1d"})
    assert answer.status_code == 422
    assert answer.json["type"].endswith("/outlives-parent")
    assert [error["pointer"] for error in answer.json["errors"]] == ["/expires_in"]


def test_the_audit_chain_shows_the_names_of_keys_and_hashes_the_same(api: ApiOf) -> None:
    admin = make_key(api(), name="ops", role="admin")
    api(admin["key"]).post("/v1/webhooks", {"url": "http://127.0.0.1:9/hook"})
    page = api().get("/v1/audit?limit=2").json
    assert page["data"][0]["actor"] == {"type": "key", "id": admin["id"], "role": "admin"}
    assert page["key_names"][admin["id"]] == "ops"
    assert set(page["key_names"].values()) == {"ops", "root"}
    assert api().get("/v1/audit/verify").json["status"] == "intact"
