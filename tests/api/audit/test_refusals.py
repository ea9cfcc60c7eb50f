"""Refused access in the audit chain: a key's first in an hour, and the number of the others."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app import ids
from app.api.http.services import EXTENSION
from app.core.audit import chain
from app.core.audit.refusals import Refusals
from app.core.callers import Caller, Role
from app.database import Database
from app.errors import Unavailable
from tests.api.audit.chains import entries
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import make_agent, make_key, refused, revoke


def refusals_of(api: Api, key_id: str) -> list[dict[str, Any]]:
    return entries(api, f"actor={key_id}&action=access.refused&order=asc&limit=200")


def id_of(api: ApiOf, key: str) -> str:
    return str(api(key).get("/v1/keys/self").json["id"])


@pytest.fixture
def an_hour_later(admin_engine: Engine, app: Flask) -> Callable[[], None]:
    """Return what lets an hour go by since the last entry of each key, for all processes."""

    def pass_by() -> None:
        app.extensions[EXTENSION].refusals.write()
        app.extensions[EXTENSION].refusals._kept.clear()
        with admin_engine.begin() as connection:
            connection.execute(
                text("UPDATE refused_access SET entered_at = entered_at - interval '61 minutes'")
            )

    return pass_by


def test_a_key_that_may_not_is_entered_with_what_it_tried(
    api: ApiOf, mint: Mint, tenant: FreshTenant
) -> None:
    reader = mint("read")
    pin = {"agent_id": make_agent(api())["id"], "principal": "bob"}
    pinned = make_key(api(), role="admin", pin=pin)
    refused(api(reader).delete("/v1/webhooks/whk_1"), 403, "insufficient-role")
    refused(api(pinned["key"]).get("/v1/audit"), 403, "pinned-key")
    (first,) = refusals_of(api(), id_of(api, reader))
    assert first["actor"]["role"] == "read"
    assert first["target"] == {"type": "route", "id": "DELETE /v1/webhooks/<webhook_id>"}
    assert first["details"] == {"reason": "insufficient-role", "refused_since_last_entry": 0}
    assert (first["outcome"], first["origin"]) == ("refused", "127.0.0.1")
    assert first["request_id"]
    (second,) = refusals_of(api(), pinned["id"])
    assert second["details"]["reason"] == "pinned-key"


def test_a_key_that_has_ended_is_entered_and_an_unknown_one_is_not(
    api: ApiOf, mint: Mint, admin_engine: Engine
) -> None:
    gone, late = mint("write"), mint("write")
    gone_id, late_id = id_of(api, gone), id_of(api, late)
    revoke(api, gone)
    with admin_engine.begin() as connection:
        connection.execute(
            text("UPDATE api_keys SET expires_at = clock_timestamp() WHERE id = :id"),
            {"id": ids.parse("key", late_id)},
        )
    before = len(entries(api(), "limit=200"))
    unknown = "svc_" + "0" * 46
    for key in (gone, late, unknown, "nonsense"):
        answer = api(key).post("/v1/records", {})
        assert (
            refused(answer, 401, "unauthenticated")["detail"]
            == refused(api(unknown).get("/v1/agents"), 401, "unauthenticated")["detail"]
        ), "the answer does not tell which"
    for key_id, reason in ((gone_id, "revoked-key"), (late_id, "expired-key")):
        (entry,) = refusals_of(api(), key_id)
        assert entry["details"]["reason"] == reason
        assert entry["target"]["id"] == "POST /v1/records"
    assert len(entries(api(), "limit=200")) == before + 2


def test_a_flood_of_refusals_is_one_entry_and_its_number_is_in_the_next(
    api: ApiOf, mint: Mint, an_hour_later: Callable[[], None], admin_engine: Engine
) -> None:
    reader = mint("read")
    key_id = id_of(api, reader)
    for _ in range(150):
        assert api(reader).post("/v1/keys", {}).status_code == 403
    assert len(refusals_of(api(), key_id)) == 1
    an_hour_later()
    assert api(reader).post("/v1/keys", {}).status_code == 403
    first, second = refusals_of(api(), key_id)
    assert first["details"]["refused_since_last_entry"] == 0
    assert second["details"]["refused_since_last_entry"] == 149


@pytest.fixture
def processes(database: Database) -> Iterator[list[Refusals]]:
    """Return the refusals of several processes."""
    made = [Refusals(database) for _ in range(4)]
    yield made
    for each in made:
        each.close()


def test_ten_thousand_refusals_in_four_processes_add_up(
    api: ApiOf,
    mint: Mint,
    tenant: FreshTenant,
    processes: list[Refusals],
    admin_engine: Engine,
) -> None:
    key_ids = [ids.parse("key", id_of(api, mint("read"))) for _ in range(3)]
    callers = [
        Caller(tenant.id, key_id, Role.READ, None, "r", origin="192.0.2.1")
        for key_id in key_ids
        if key_id is not None
    ]
    before = len(entries(api(), "limit=200"))

    def flood(number: int) -> None:
        for times in range(1250):
            caller = callers[times % len(callers)]
            processes[number % len(processes)].note(caller, "insufficient-role", "GET /")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(flood, range(8)))
    for each in processes:
        each.write()
        each.write()
    assert len(entries(api(), "limit=200")) == before + len(callers)
    with admin_engine.begin() as connection:
        counted = connection.execute(
            text("SELECT sum(counted)::bigint FROM refused_access WHERE tenant_id = :tenant"),
            {"tenant": tenant.id},
        ).scalar_one()
    assert counted + len(callers) == 8 * 1250


def test_what_is_refused_while_the_database_is_away_is_counted_later(
    api: ApiOf,
    mint: Mint,
    tenant: FreshTenant,
    database: Database,
    an_hour_later: Callable[[], None],
) -> None:
    away = Database("postgresql://nobody@127.0.0.1:1/none")
    key = id_of(api, mint("read"))
    key_id = ids.parse("key", key)
    assert key_id is not None
    caller = Caller(tenant.id, key_id, Role.READ, None, "r")
    kept = Refusals(database)
    kept.note(caller, "insufficient-role", "GET /")
    an_hour_later()
    kept._kept.clear()
    kept._database = away
    for _ in range(3):
        kept.note(caller, "insufficient-role", "GET /")
    kept._database = database
    kept.write()
    kept.note(caller, "insufficient-role", "GET /")
    kept.close()
    _, entry = refusals_of(api(), key)
    assert entry["details"]["refused_since_last_entry"] == 3
    with pytest.raises(Unavailable), away.transaction(tenant.id):
        pass
    away.close()


def test_a_refusal_that_an_error_kept_out_of_the_chain_keeps_out_no_later_one(
    api: ApiOf,
    mint: Mint,
    tenant: FreshTenant,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key_id = ids.parse("key", id_of(api, mint("read")))
    assert key_id is not None
    caller = Caller(tenant.id, key_id, Role.READ, None, "r")
    kept = Refusals(database)
    with monkeypatch.context() as patched:
        patched.setattr(chain, "append_by", Mock(side_effect=LookupError))
        with pytest.raises(LookupError):
            kept.note(caller, "insufficient-role", "GET /")
    kept.note(caller, "insufficient-role", "GET /")
    kept.close()
    assert len(refusals_of(api(), ids.text("key", key_id))) == 1
