"""What a tenant may store: counted as records come and bundles go, and refused beyond it whole."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from app import ids
from app.core.records import storage
from app.core.records.storage import MIB, StorageUse
from app.database import Database
from app.manage import commands
from app.settings import SettingError, Settings
from tests.support.callers.api import Api, ApiOf, FreshTenant, serving
from tests.support.callers.making import make_record, make_session, record_of, refused
from tests.support.database.storing import counted, kept
from tests.support.workers.expiring import Expirer

Limited = Callable[..., Any]

HALF = "x" * (MIB // 2)


@pytest.fixture
def session(api: ApiOf) -> dict[str, Any]:
    """Return an open session."""
    return make_session(api())


@pytest.fixture
def limited(settings: Settings, tenant: FreshTenant) -> Limited:
    """Return a maker of the tenant's caller to a service with limits of its own."""

    @contextmanager
    def serve(*, tenant_stored_mib: int = 0, tenant_records: int = 0) -> Iterator[Api]:
        own = replace(settings, tenant_stored_mib=tenant_stored_mib, tenant_records=tenant_records)
        with serving(own) as api:
            yield api(tenant.root_key)

    return serve


def test_beyond_the_bytes_a_record_is_refused_and_nothing_of_it_is_kept(
    limited: Limited, database: Database, tenant: FreshTenant, session: dict[str, Any]
) -> None:
    body = record_of(session["id"], content=HALF)
    leaves = text("SELECT count(*) FROM log_leaves")
    with limited(tenant_stored_mib=1) as api:
        make_record(api, session["id"], content=HALF)
        before = counted(database, tenant.id)
        with database.across_tenants() as opened:
            leaves_before = opened.scalar(leaves)
        problem = refused(api.post("/v1/records", body), 409, "storage-limit")
        # What is small still finds room.
        make_record(api, session["id"])

    assert "may come to 1 MiB" in problem["detail"]
    assert "bundle_retention_days" in problem["detail"]
    assert "TENANT_STORED_MIB" in problem["detail"]
    assert before.records == 1
    after = counted(database, tenant.id)
    assert after == kept(database, tenant.id)
    assert after.records == 2
    with database.across_tenants() as opened:
        assert opened.scalar(leaves) == leaves_before + 1


def test_a_bundle_that_fills_the_limit_exactly_is_taken(
    limited: Limited, database: Database, tenant: FreshTenant, session: dict[str, Any]
) -> None:
    def posted(api: Api, characters: int) -> int:
        content = {"text": "x" * characters}
        body = record_of(session["id"], content=content, occurred_at="2026-01-31T12:00:00Z")
        return int(api.post("/v1/records", body).status_code)

    with limited(tenant_stored_mib=0) as api:
        assert posted(api, 0) == 201
        left = MIB - 2 * counted(database, tenant.id).bytes
    with limited(tenant_stored_mib=1) as api:
        assert posted(api, left + 1) == 409
        assert posted(api, left) == 201
        assert counted(database, tenant.id).bytes == MIB


def test_what_expires_makes_room_for_bundles_and_not_for_records(
    limited: Limited,
    database: Database,
    admin_engine: Engine,
    tenant: FreshTenant,
    session: dict[str, Any],
) -> None:
    body = record_of(session["id"], content=HALF)
    expirer = Expirer(database, admin_engine, tenant)
    with limited(tenant_stored_mib=1) as api:
        expirer.age(make_record(api, session["id"], content=HALF), days=2)
        refused(api.post("/v1/records", body), 409, "storage-limit")
        api.patch("/v1/tenant/settings", {"bundle_retention_days": 1})
        assert expirer.run() == {"expired": 1}
        assert counted(database, tenant.id) == StorageUse(1, 0)
        assert api.post("/v1/records", body).status_code == 201
    with limited(tenant_records=2) as api:
        problem = refused(api.post("/v1/records", body), 409, "storage-limit")
    assert "2 records, expired ones included" in problem["detail"]
    assert "TENANT_RECORDS" in problem["detail"]


def test_a_refused_request_is_no_answer_to_its_idempotency_key(
    limited: Limited, session: dict[str, Any]
) -> None:
    body = record_of(session["id"])
    again = {"headers": {"Idempotency-Key": "one"}}
    with limited(tenant_records=1) as api:
        first = make_record(api, session["id"])
        refused(api.post("/v1/records", body, **again), 409, "storage-limit")
    with limited(tenant_records=2) as api:
        made = api.post("/v1/records", body, **again)
        assert made.status_code == 201
        assert made.json["id"] != first["id"]
        # There is no room for another; what was made is answered again.
        assert api.post("/v1/records", body, **again).json == made.json


def test_a_tenant_does_not_fill_the_room_of_another(
    limited: Limited, settings: Settings, session: dict[str, Any], other_tenant: FreshTenant
) -> None:
    with limited(tenant_records=1) as api:
        make_record(api, session["id"])
        refused(api.post("/v1/records", record_of(session["id"])), 409, "storage-limit")
    with serving(replace(settings, tenant_records=1)) as api_of:
        other = api_of(other_tenant.root_key)
        make_record(other, make_session(other)["id"])


def test_what_is_stored_at_the_same_time_is_counted_exactly(
    api: ApiOf, database: Database, tenant: FreshTenant, session: dict[str, Any]
) -> None:
    with ThreadPoolExecutor(6) as pool:
        for made in [pool.submit(make_record, api(), session["id"]) for _ in range(24)]:
            made.result()

    assert counted(database, tenant.id) == kept(database, tenant.id)
    assert counted(database, tenant.id).records == 24


def test_a_transaction_that_is_rolled_back_has_stored_nothing(
    database: Database, api: ApiOf, tenant: FreshTenant, session: dict[str, Any]
) -> None:
    make_record(api(), session["id"])
    before = counted(database, tenant.id)
    with database.transaction(tenant.id) as opened:
        opened.execute(text("DELETE FROM bundles"))
        assert storage.of_each(opened)[tenant.id] == StorageUse(1, 0)
        opened.rollback()
    assert counted(database, tenant.id) == before


def test_the_list_of_tenants_says_what_each_has_stored(
    api: ApiOf,
    environ: dict[str, str],
    tenant: FreshTenant,
    other_tenant: FreshTenant,
    session: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        make_record(api(), session["id"], content=HALF)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert commands.main(["tenant", "list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "  2 records  1.0 MiB  " in lines[ids.text("ten", tenant.id)]
    assert "  0 records  0.0 MiB  " in lines[ids.text("ten", other_tenant.id)]


@pytest.mark.parametrize("name", ["TENANT_STORED_MIB", "TENANT_RECORDS"])
@pytest.mark.parametrize("value", ["-1", "10 GiB", "1.5", "9" * 30])
def test_a_limit_that_is_no_whole_number_is_named(
    environ: dict[str, str], name: str, value: str
) -> None:
    with pytest.raises(SettingError, match=f"{name} is wrong: use a whole number"):
        Settings.from_environ({**environ, name: value})
