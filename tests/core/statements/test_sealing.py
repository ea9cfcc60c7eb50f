"""A completed session is sealed once, whoever is killed; every record is counted or refused."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app.core import signing_keys
from app.core.records import statements
from app.core.records.statements import Place
from app.database import Database
from app.errors import Unavailable
from app.ledger import leaves, merkle
from app.lib.crypto.signing import PublicKey
from app.models import Record, SessionStatement
from app.settings import Settings
from dev.stack import ROOT
from tests.support.callers.api import ApiOf, FreshTenant
from tests.support.callers.making import (
    make_agent,
    make_finding,
    make_record,
    make_session,
    record_of,
    refused,
    uuid_of,
)
from tests.support.database.databases import waiting
from tests.support.faults import until

Seal = Callable[[], bool]


@pytest.fixture
def seal(database: Database, settings: Settings) -> Seal:
    return lambda: statements.seal_due(database, settings.master_keys, time.monotonic() + 60)


def complete(api: ApiOf, session: dict[str, Any]) -> dict[str, Any]:
    answer = api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})
    assert answer.status_code == 200, answer.json
    return dict(answer.json)


def root_of(digests: list[str]) -> str:
    return merkle.root(merkle.leaf_hash(bytes.fromhex(each)) for each in digests).hex()


def stored(database: Database, tenant: FreshTenant, session: dict[str, Any]) -> SessionStatement:
    with database.transaction(tenant.id) as opened:
        found = statements.find(opened, tenant.id, uuid_of(session["id"]))
    assert found is not None
    return found


def test_a_statement_says_what_its_session_held(
    api: ApiOf, database: Database, tenant: FreshTenant, seal: Seal, admin_engine: Engine
) -> None:
    agent = make_agent(api(), external_id="bot", version="3")
    session = make_session(api(), agent["id"], external_id="run-7")
    path = f"/v1/sessions/{session['id']}/statement"
    made = [make_record(api(), session["id"], title=str(number)) for number in range(3)]
    make_record(api(), make_session(api(), agent["id"])["id"])
    for severity in ("high", "low", "high"):
        make_finding(api(), session["id"], severity=severity)
    refused(api().get(path), 409, "session-open")
    completed = complete(api, session)
    pending = api().get(path)
    refused(pending, 409, "statement-pending")
    assert pending.headers["Retry-After"] == "1"
    seal()
    make_finding(api(), session["id"], severity="critical")
    answer = api().get(path)
    said = json.loads(answer.data)
    assert len(said.pop("nonce")) == 43
    key_id = said.pop("key_id")
    assert said == {
        "schema": "records/session/v1",
        "session": {
            "id": session["id"],
            "external_id": "run-7",
            "agent": {
                "id": agent["id"],
                "external_id": "bot",
                "name": agent["name"],
                "version": "3",
            },
            "principal": session["principal"],
            "opened_at": session["created_at"],
            "completed_at": completed["completed_at"],
            "outcome": "succeeded",
        },
        "records": 3,
        "root": root_of([each["bundle"]["sha256"] for each in made]),
        "first_at": made[0]["created_at"],
        "last_at": made[2]["created_at"],
        "findings": {"info": 0, "low": 1, "medium": 0, "high": 2, "critical": 0},
    }
    found = stored(database, tenant, session)
    assert (answer.data, answer.headers["ETag"]) == (found.body, f'"{found.sha256.hex()}"')
    assert f'keyid="{key_id}"' in answer.headers["x-service-bundle-signature"]
    with database.transaction(tenant.id) as opened:
        public = signing_keys.public_key(opened, key_id)
    assert PublicKey(public.raw).verifies(found.signature, answer.data)
    leaf = leaves.session(sha256(answer.data).digest())
    with admin_engine.connect() as connection:
        held = connection.execute(
            text("SELECT count(*) FROM log_leaves WHERE data = :leaf"), {"leaf": leaf}
        )
        assert held.scalar_one() == 1
    assert api().get(path, headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304


def test_a_session_without_records_has_a_statement(api: ApiOf, seal: Seal) -> None:
    session = make_session(api())
    complete(api, session)
    seal()
    said = api().get(f"/v1/sessions/{session['id']}/statement").json
    assert (said["records"], said["root"]) == (0, sha256(b"").hexdigest())
    assert said["first_at"] is said["last_at"] is None


def test_each_record_has_its_place_however_the_digests_are_stored(
    api: ApiOf,
    database: Database,
    tenant: FreshTenant,
    seal: Seal,
    monkeypatch: pytest.MonkeyPatch,
    admin_engine: Engine,
) -> None:
    monkeypatch.setattr(statements, "PART", 4)
    agent = make_agent(api())["id"]
    made: list[dict[str, Any]] = []
    for count in (1, 4, 5, 8, 13):
        session = make_session(api(), agent)
        body = {"records": [record_of(session["id"]) for _ in range(count)]}
        made = api().post("/v1/records/batch", body).json["data"]
        complete(api, session)
        seal()
        root = stored(database, tenant, session).root
        assert root.hex() == root_of([each["bundle"]["sha256"] for each in made])
        for number, each in enumerate(made):
            place = place_of(database, tenant, each)
            assert place is not None
            assert (place.index, place.size) == (number, count)
            leaf = merkle.leaf_hash(bytes.fromhex(each["bundle"]["sha256"]))
            merkle.verify_inclusion(leaf, number, count, place.path, root)
    change = "UPDATE records SET bundle_sha256 = sha256(bundle_sha256) WHERE id = :id"
    with admin_engine.begin() as connection:
        connection.execute(text(change), {"id": uuid_of(made[0]["id"])})
    assert place_of(database, tenant, made[0]) is None


def place_of(database: Database, tenant: FreshTenant, record: dict[str, Any]) -> Place | None:
    with database.transaction(tenant.id) as opened:
        found = opened.get(Record, (tenant.id, uuid_of(record["id"])))
        assert found is not None
        return statements.place_of(opened, found)


def test_a_record_that_races_with_completion_is_counted_or_refused(
    api: ApiOf, database: Database, tenant: FreshTenant, seal: Seal
) -> None:
    threads, rounds = 8, 5
    agent = make_agent(api())["id"]
    for _ in range(rounds):
        session = make_session(api(), agent)
        together = Barrier(threads + 2)

        def post(session: dict[str, Any] = session, together: Barrier = together) -> list[str]:
            counted, caller = [], api()
            together.wait()
            body = record_of(session["id"])
            while (answer := caller.post("/v1/records", body)).status_code == 201:
                counted.append(answer.json["bundle"]["sha256"])
            refused(answer, 409, "session-completed")
            return counted

        def close(session: dict[str, Any] = session, together: Barrier = together) -> None:
            together.wait()
            complete(api, session)

        def seal_early(session: dict[str, Any] = session, together: Barrier = together) -> None:
            together.wait()
            until(lambda: seal() or is_sealed(database, tenant, session))

        with ThreadPoolExecutor(threads + 2) as pool:
            posting = [pool.submit(post) for _ in range(threads)]
            others = [pool.submit(close), pool.submit(seal_early)]
            counted = [digest for each in posting for digest in each.result()]
            for each in others:
                each.result()
        found = stored(database, tenant, session)
        assert found.records == len(counted)
        with database.transaction(tenant.id) as opened:
            sealed = b"".join(statements.digests(opened, found)).hex()
        assert sorted(sealed[at : at + 64] for at in range(0, len(sealed), 64)) == sorted(counted)


def is_sealed(database: Database, tenant: FreshTenant, session: dict[str, Any]) -> bool:
    with database.transaction(tenant.id) as opened:
        return statements.find(opened, tenant.id, uuid_of(session["id"])) is not None


def test_a_session_is_sealed_once_by_whoever_is_first(
    api: ApiOf, database: Database, settings: Settings, tenant: FreshTenant, admin_engine: Engine
) -> None:
    session = make_session(api())
    make_record(api(), session["id"])
    complete(api, session)
    together = Barrier(4)

    def seal() -> bool:
        with database.transaction(tenant.id) as opened:
            together.wait()
            return statements.seal(opened, settings.master_keys, tenant.id, uuid_of(session["id"]))

    with ThreadPoolExecutor(4) as pool:
        sealed = [each.result() for each in [pool.submit(seal) for _ in range(4)]]
    assert sorted(sealed) == [False, False, False, True]
    with admin_engine.connect() as connection:
        leaf = "SELECT count(*) FROM log_leaves WHERE data = :leaf"
        data = leaves.session(stored(database, tenant, session).sha256)
        assert connection.execute(text(leaf), {"leaf": data}).scalar_one() == 1


def test_sealing_that_is_cut_off_leaves_nothing_and_is_done_again(
    api: ApiOf, database: Database, tenant: FreshTenant, seal: Seal, admin_engine: Engine
) -> None:
    session = make_session(api())
    make_record(api(), session["id"])
    complete(api, session)
    with ThreadPoolExecutor(1) as pool, admin_engine.connect() as other:
        # It waits here, with its statement inserted and its leaf not yet.
        other.execute(text("LOCK TABLE log_leaves IN EXCLUSIVE MODE"))
        sealed = pool.submit(seal)
        until(lambda: waiting(admin_engine, "INSERT INTO log_leaves"))
        with admin_engine.begin() as killer:
            killer.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE query ~ '^INSERT INTO log_leaves' AND wait_event_type = 'Lock'"
                )
            )
        with pytest.raises(Unavailable):
            sealed.result()
    assert not is_sealed(database, tenant, session)
    refused(api().get(f"/v1/sessions/{session['id']}/statement"), 409, "statement-pending")
    assert seal() is False
    assert is_sealed(database, tenant, session)


SEAL = """
import time
from app.core.records import statements
from app.database import Database
from app.settings import load

settings = load()
statements.seal_due(Database(settings.database_url), settings.master_keys, time.monotonic() + 60)
"""


def test_a_worker_that_is_killed_while_it_seals_leaves_the_session_to_the_next(
    api: ApiOf,
    database: Database,
    tenant: FreshTenant,
    seal: Seal,
    admin_engine: Engine,
    environ: dict[str, str],
) -> None:
    session = make_session(api())
    make_record(api(), session["id"])
    complete(api, session)
    with admin_engine.connect() as other:
        other.execute(text("LOCK TABLE log_leaves IN EXCLUSIVE MODE"))
        worker = subprocess.Popen([sys.executable, "-c", SEAL], env=os.environ | environ, cwd=ROOT)
        try:
            until(lambda: waiting(admin_engine, "INSERT INTO log_leaves"))
        finally:
            worker.kill()
            worker.wait()
    # Its server process goes on with the statement, and then finds nobody who commits it.
    until(lambda: seal() or is_sealed(database, tenant, session))
    data = leaves.session(stored(database, tenant, session).sha256)
    with admin_engine.connect() as connection:
        count = connection.execute(
            text("SELECT count(*) FROM log_leaves WHERE data LIKE :like"), {"like": b"%session%"}
        )
        assert (
            count.scalar_one()
            == connection.execute(text("SELECT count(*) FROM session_statements")).scalar_one()
        )
        found = connection.execute(
            text("SELECT count(*) FROM log_leaves WHERE data = :data"), {"data": data}
        )
        assert found.scalar_one() == 1
