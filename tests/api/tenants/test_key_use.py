"""Keys in use: how they are sent, when they end, when they were used; confirmed at each answer."""

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, event, text

from app import clock
from app.api.http.rate_limit import REFUSALS
from app.api.http.services import EXTENSION
from app.core.keys import keyring
from app.core.keys.keyring import Keyring
from app.database import Database
from app.errors import Unauthenticated
from app.lib.crypto import api_keys
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import (
    NOBODY,
    finding_of,
    make_key,
    make_session,
    pin_of,
    pointers,
    refused,
    revoke,
    slug,
)


def alter(admin_engine: Engine, key: str, change: str) -> None:
    """Change a key's row as the database's owner."""
    with admin_engine.begin() as connection:
        statement = text(f"UPDATE api_keys SET {change} WHERE digest = :digest")
        connection.execute(statement, {"digest": api_keys.digest(key)})


def test_unknown_revoked_expired_and_malformed_keys_are_refused_in_the_same_words(
    api: ApiOf, mint: Mint, admin_engine: Engine
) -> None:
    soon = clock.rfc3339(clock.now() + timedelta(hours=1))
    revoked, expired = mint("read"), make_key(api(), expires_at=soon)["key"]
    for key in (revoked, expired):
        assert api(key).get("/v1/keys/self").status_code == 200
    revoke(api, revoked)
    alter(admin_engine, expired, "expires_at = clock_timestamp()")

    answers = [
        api(key).get("/v1/keys/self")
        for key in (revoked, expired, api_keys.new(), "svc_" + "a" * 46, "x", "é" * 50)
    ]

    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.json["detail"] for answer in answers}) == 1
    assert {answer.headers["WWW-Authenticate"] for answer in answers} == {"Bearer"}


def test_no_key_is_401_and_says_how_to_send_one(api: ApiOf) -> None:
    refused = api(None).get("/v1/keys")

    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert "Authorization: Bearer" in refused.json["detail"]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {"Authorization": "Bearer {key}"}),
        (200, {"Authorization": "bearer {key}"}),
        (200, {"Authorization": "Bearer  {key} "}),
        (200, {"x-api-key": "{key}"}),
        (401, {"Authorization": "{key}"}),
        (401, {"Authorization": "Basic {key}"}),
        (401, {"Authorization": "Bearer {key},Bearer {key}"}),
        (401, {"Authorization": "Bearer", "x-api-key": ""}),
    ],
)
def test_a_key_is_accepted_in_either_header_where_it_is_plainly_one(
    api: ApiOf, tenant: FreshTenant, status: int, headers: dict[str, str]
) -> None:
    sent = {name: value.format(key=tenant.root_key) for name, value in headers.items()}

    assert api(None).get("/v1/keys/self", headers=sent).status_code == status


@pytest.mark.parametrize("path", ["/v1/keys/self", "/v1/log/checkpoint", "/nowhere", "/metrics"])
@pytest.mark.parametrize("authorization", ["Bearer {key}", "Bearer svc_x", "Basic eDp5", "Zz17"])
def test_two_credentials_are_refused_before_anything_else(
    api: ApiOf, tenant: FreshTenant, statements: list[str], path: str, authorization: str
) -> None:
    sent = {
        "Authorization": authorization.format(key=tenant.root_key),
        "x-api-key": tenant.root_key,
    }
    refused = api(None).get(path, headers=sent)

    assert (refused.status_code, refused.json["detail"]) == (
        400,
        "Send Authorization or x-api-key, not both.",
    )
    assert statements == []


def test_a_key_in_the_query_string_opens_nothing(api: ApiOf, tenant: FreshTenant) -> None:
    assert api(None).get(f"/v1/keys/self?x-api-key={tenant.root_key}").status_code == 401


@pytest.fixture
def statements(database: Database) -> Iterator[list[str]]:
    """What the database is asked while the test runs."""
    asked: list[str] = []

    def note(*arguments: Any) -> None:
        asked.append(arguments[2])

    event.listen(database.engine, "before_cursor_execute", note)
    yield asked
    event.remove(database.engine, "before_cursor_execute", note)


@pytest.mark.parametrize("malformed", ["", "x", "svc_" + "A" * 46, "svc_" + "A" * 4000])
def test_a_malformed_key_costs_no_query(
    database: Database, statements: list[str], malformed: str
) -> None:
    with pytest.raises(Unauthenticated):
        keyring.authenticate(database, malformed, "r")

    assert statements == []


def test_the_role_is_read_anew_for_each_request(
    api: ApiOf, mint: Mint, admin_engine: Engine
) -> None:
    key = mint("admin")
    assert api(key).post("/v1/keys", {"name": "n", "role": "read"}).status_code == 201

    alter(admin_engine, key, "role = 'read'")

    assert api(key).post("/v1/keys", {"name": "n", "role": "read"}).status_code == 403


def test_too_many_bad_keys_are_429_and_good_ones_still_pass(
    api: ApiOf, tenant: FreshTenant
) -> None:
    address = {"REMOTE_ADDR": "203.0.113.77"}

    # A new window may begin on the way, so up to twice the measure is let through.
    wrong = api("svc_wrong")
    answers = [wrong.get("/v1/keys", environ_overrides=address)]
    while answers[-1].status_code == 401 and len(answers) <= 2 * REFUSALS.limit:
        answers.append(wrong.get("/v1/keys", environ_overrides=address))

    assert answers[-1].status_code == 429
    assert len(answers) > REFUSALS.limit
    assert int(answers[-1].headers["Retry-After"]) in range(1, 61)
    assert answers[-1].headers["RateLimit-Remaining"] == "0"
    assert slug(answers[-1]) == "rate-limited"
    assert api().get("/v1/keys", environ_overrides=address).status_code == 200


def write_usage(app: Flask) -> None:
    app.extensions[EXTENSION].keyring.write_uses()


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
    minted, usage = make_key(api()), Keyring(database)
    caller = keyring.authenticate(database, minted["key"], "r")
    written = []
    for seconds in (600.0, 7200.0, 0.0):
        usage._used[caller.tenant_id, caller.key_id] = time.monotonic() - seconds
        usage.write_uses()
        written.append(datetime.fromisoformat(shown(api, minted)["last_used_at"]))
    assert written[0] == written[1] < written[2]


def test_many_requests_of_a_key_are_one_statement(database: Database, tenant: FreshTenant) -> None:
    usage = Keyring(database)
    caller = keyring.authenticate(database, tenant.root_key, "r")
    said: list[str] = []
    event.listen(database.engine, "checkout", lambda *_: said.append("checkout"))
    for _ in range(1000):
        usage.note_use(caller)
    usage.close()
    # The thread writes as it begins and as it ends.
    assert len(said) <= 2


def test_a_key_that_has_ended_is_not_used(
    api: ApiOf, database: Database, tenant: FreshTenant
) -> None:
    minted = make_key(api())
    usage = Keyring(database)
    caller = keyring.authenticate(database, minted["key"], "r")
    assert api().delete(f"/v1/keys/{minted['id']}").status_code == 204
    usage.note_use(caller)
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


@pytest.mark.parametrize("path", ["/v1/findings", "/v1/findings/batch"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"headers": {"Idempotency-Key": "again"}},
        {"data": b"no json", "content_type": "application/json"},
        {"data": b"{}", "content_type": "application/json"},
        {"session_id": "ses_" + NOBODY},
        {"query_string": {"unknown": "1"}},
    ],
    ids=["good", "repeated", "malformed", "invalid", "not found", "unknown parameter"],
)
def test_a_revoked_key_is_unauthenticated_whatever_it_asks(
    api: ApiOf, mint: Mint, path: str, options: dict[str, Any]
) -> None:
    session = make_session(api())
    key = mint("write")
    options = dict(options)
    body: Any = finding_of(options.pop("session_id", session["id"]))
    if path.endswith("batch"):
        body = {"findings": [body]}
    if "data" not in options:
        options["json"] = body
    first = api(key).request("POST", path, **options)
    assert first.status_code != 401
    # By now every path through the route has met the key.
    assert api(key).request("POST", path, **options).status_code == first.status_code
    before = api().get("/v1/findings").json
    revoke(api, key)
    answer = api(key).request("POST", path, **options)
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    refused(answer, 401, "unauthenticated")
    assert api().get("/v1/findings").json == before


def test_a_revoked_key_of_too_low_a_role_is_unauthenticated(api: ApiOf, mint: Mint) -> None:
    key = mint("read")
    body = finding_of(make_session(api())["id"])
    for _ in range(2):
        refused(api(key).post("/v1/findings", body), 403, "insufficient-role")
    revoke(api, key)
    refused(api(key).post("/v1/findings", body), 401, "unauthenticated")
