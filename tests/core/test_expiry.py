"""Expiry: what is due goes, all of it and nothing else, however often it is run or stopped."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from app.core.jobs import leases, steps
from app.core.records import expiry
from app.database import Database
from tests.support.callers.api import Api, FreshTenant
from tests.support.callers.making import make_record, make_session
from tests.support.workers.expiring import Expirer

Callers = Callable[..., Api]


@pytest.fixture
def expirer(database: Database, admin_engine: Engine, tenant: FreshTenant) -> Expirer:
    return Expirer(database, admin_engine, tenant)


@pytest.fixture
def session(api: Callers) -> dict[str, Any]:
    return make_session(api())


def keep_for(api: Api, days: int | None) -> None:
    assert api.patch("/v1/tenant/settings", {"bundle_retention_days": days}).status_code == 200


def expired(api: Api, record: dict[str, Any]) -> bool:
    return bool(api.get(f"/v1/records/{record['id']}").json["bundle"]["expired"])


def test_what_is_due_goes_and_what_is_not_stays(
    api: Callers, session: dict[str, Any], expirer: Expirer
) -> None:
    old, young = (make_record(api(), session["id"]) for _ in range(2))
    keep_for(api(), 30)
    expirer.age(old, days=31)
    expirer.age(young, days=29)
    assert expired(api(), old), "due before any job ran"
    assert expirer.run() == {"expired": 1}
    assert expirer.bundles() == {young["id"]}
    assert expired(api(), old)
    assert not expired(api(), young)
    entry = api().get("/v1/audit?order=desc&limit=1").json["data"][0]
    assert entry["action"] == "bundles.expire"
    assert entry["actor"] == {"type": "system", "id": "record-service"}
    assert entry["details"]["expired"] == 1


def test_nothing_due_makes_no_job_and_no_entry(
    api: Callers, session: dict[str, Any], expirer: Expirer
) -> None:
    make_record(api(), session["id"])
    keep_for(api(), 1)
    assert expirer.run() is None
    assert api().get("/v1/jobs").json["data"] == []


def test_a_second_run_finds_nothing(
    api: Callers, session: dict[str, Any], expirer: Expirer
) -> None:
    expirer.age(make_record(api(), session["id"]), days=2)
    keep_for(api(), 1)
    assert expirer.run() == {"expired": 1}
    assert expirer.run() is None


def test_lengthening_brings_nothing_back_and_ends_nothing_early(
    api: Callers, session: dict[str, Any], expirer: Expirer
) -> None:
    due, young = (make_record(api(), session["id"]) for _ in range(2))
    expirer.age(due, days=5)
    expirer.age(young, days=2)
    keep_for(api(), 3)
    keep_for(api(), 3650)
    assert expired(api(), due)
    assert not expired(api(), young)
    keep_for(api(), None)
    assert expired(api(), due)
    assert expirer.run() == {"expired": 1}
    assert expirer.bundles() == {young["id"]}


def test_shortening_makes_due_at_once(
    api: Callers, session: dict[str, Any], expirer: Expirer
) -> None:
    record = make_record(api(), session["id"])
    expirer.age(record, days=5)
    keep_for(api(), 10)
    assert not expired(api(), record)
    keep_for(api(), 4)
    assert expired(api(), record)


def test_what_is_set_back_behind_all_that_expired_is_found_too(
    api: Callers, session: dict[str, Any], expirer: Expirer
) -> None:
    first, second = (make_record(api(), session["id"]) for _ in range(2))
    keep_for(api(), 1)
    expirer.age(first, days=10)
    assert expirer.run() == {"expired": 1}
    expirer.age(second, days=400)
    assert expirer.run() == {"expired": 1}
    assert expirer.bundles() == set()


def test_the_patrol_goes_round_in_slices(
    api: Callers, session: dict[str, Any], expirer: Expirer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "MOST_RECORDS", 2)
    records = [make_record(api(), session["id"]) for _ in range(5)]
    keep_for(api(), 1)
    for record in records[:4]:
        expirer.age(record, days=10)
    assert expirer.run() == {"expired": 4}
    expirer.age(records[4], days=400)
    looks = 0
    while expirer.run() is None:
        looks += 1
        assert looks < 5
    assert expirer.bundles() == set()


def test_what_was_due_when_the_days_changed_goes_at_the_next_look(
    api: Callers, session: dict[str, Any], expirer: Expirer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "MOST_RECORDS", 2)
    records = [make_record(api(), session["id"]) for _ in range(6)]
    keep_for(api(), 40)
    for record in records[:4]:
        expirer.age(record, days=50)
    assert expirer.run() == {"expired": 4}
    assert expirer.run() is None
    keep_for(api(), 30)
    expirer.age(records[4], days=35)
    keep_for(api(), 3650)
    keep_for(api(), None)
    assert expirer.run() == {"expired": 1}
    assert expirer.bundles() == {records[5]["id"]}


@pytest.mark.parametrize("size", [1, 3])
def test_many_steps_expire_each_once(
    api: Callers,
    session: dict[str, Any],
    expirer: Expirer,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    monkeypatch.setattr(expiry, "MOST_RECORDS", size)
    monkeypatch.setattr(expiry, "MOST_BYTES", 1)
    for _ in range(7):
        expirer.age(make_record(api(), session["id"]), days=3)
    keep_for(api(), 2)
    assert expirer.run() == {"expired": 7}
    assert expirer.bundles() == set()


def test_one_run_at_a_time(api: Callers, session: dict[str, Any], expirer: Expirer) -> None:
    expirer.age(make_record(api(), session["id"]), days=3)
    keep_for(api(), 2)
    assert expirer.look() == expirer.look()


def test_an_expired_record_is_found_by_its_metadata_alone(
    api: Callers, session: dict[str, Any], expirer: Expirer
) -> None:
    record = make_record(api(), session["id"], title="quince", content="medlar")
    keep_for(api(), 1)
    assert api().get("/v1/records?q=medlar").json["data"]
    expirer.age(record, days=2)
    for _ in range(2):
        assert api().get("/v1/records?q=medlar").json["data"] == []
        assert len(api().get("/v1/records?q=quince").json["data"]) == 1
        expirer.run()


def test_nothing_of_the_content_is_left_in_any_table_or_file(
    api: Callers,
    session: dict[str, Any],
    expirer: Expirer,
    admin_engine: Engine,
) -> None:
    gone, kept = (f"marker{secrets.token_hex(12)}" for _ in range(2))
    step = {
        "name": gone,
        "kind": gone,
        "started_at": "2026-01-31T12:00:00Z",
        "ended_at": "2026-01-31T12:00:01Z",
        "status": "ok",
        "attributes": {gone: gone},
        "inputs": [gone],
        "outputs": {gone: gone},
        "events": [{"name": gone, "at": "2026-01-31T12:00:00Z", "attributes": {gone: gone}}],
    }
    headers = {"Idempotency-Key": gone[6:]}
    body = {
        "session_id": session["id"],
        "kind": "note",
        "title": kept,
        "content": {gone: [gone]},
        "steps": [step],
    }
    made = api().post("/v1/records", body, headers=headers).json
    assert api().get(f"/v1/records?q={gone}").json["data"] == [made]
    keep_for(api(), 1)
    expirer.age(made, days=2)
    assert expirer.run() == {"expired": 1}
    with admin_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CHECKPOINT"))
        tables = list(
            connection.scalars(
                text(
                    "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p')"
                    " AND relnamespace = 'public'::regnamespace"
                )
            )
        )
        assert len(tables) > 20
        data = Path(connection.execute(text("SHOW data_directory")).scalar_one())
        found = {
            marker: [table for table in tables if _holds(connection, table, marker)]
            for marker in (gone, kept)
        }
    assert found == {gone: [], kept: ["records"]}
    files = {marker: list(_files_with(data, marker)) for marker in (gone, kept)}
    assert files[kept], "the search must be able to find something"
    assert files[gone] == []


def _holds(connection: Any, table: str, marker: str) -> bool:
    rows = f"SELECT to_jsonb(t)::text AS row FROM {table} AS t"
    wanted = {"plain": f"%{marker}%", "hex": f"%{marker.encode().hex()}%"}
    query = f"SELECT EXISTS (SELECT FROM ({rows}) AS r WHERE row LIKE :plain OR row LIKE :hex)"
    return bool(connection.scalar(text(query), wanted))


def _files_with(folder: Path, marker: str) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            if path.is_file() and marker.encode() in path.read_bytes():
                yield path


class Killed(Exception):
    """Stands for the end of a process before its commit."""


def _step_and_die(opened: Session, tenant_id: UUID, job_id: UUID) -> None:
    claimed = leases.claim(opened, tenant_id, job_id)
    assert claimed is not None
    expiry.step(opened, tenant_id, claimed)
    raise Killed


def test_a_job_that_was_killed_goes_on_where_it_was(
    api: Callers,
    session: dict[str, Any],
    expirer: Expirer,
    database: Database,
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expiry, "MOST_RECORDS", 2)
    for _ in range(5):
        expirer.age(make_record(api(), session["id"]), days=3)
    keep_for(api(), 2)
    job_id = expirer.look()
    assert job_id is not None
    with database.transaction(tenant.id) as opened:
        claimed = leases.claim(opened, tenant.id, job_id)
        assert claimed is not None
        step = expiry.step(opened, tenant.id, claimed)
        assert steps.advance(opened, claimed, step)
    with pytest.raises(Killed), database.transaction(tenant.id) as opened:
        _step_and_die(opened, tenant.id, job_id)
    assert len(expirer.bundles()) == 3
    assert expirer.finish(job_id) == {"expired": 5}


def test_ids_of_records_do_not_decide(
    api: Callers, session: dict[str, Any], expirer: Expirer
) -> None:
    """The moment counts that `created_at` says, whatever time the id was made at."""
    records = [make_record(api(), session["id"]) for _ in range(3)]
    keep_for(api(), 10)
    for days, record in zip((9, 12, 11), records, strict=True):
        expirer.age(record, days=days)
    assert expirer.run() == {"expired": 2}
    assert expirer.bundles() == {records[0]["id"]}
