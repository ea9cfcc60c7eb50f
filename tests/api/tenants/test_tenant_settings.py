"""A tenant's settings and its limits of storage."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app.api.http.services import EXTENSION
from app.core.records import bundles
from app.core.records.bundles import MIB, StorageUse
from app.database import Database
from app.settings import Settings
from tests.support.callers.api import Api, ApiOf, FreshTenant, serving
from tests.support.callers.making import make_record, make_session, pointers, record_of, refused
from tests.support.database.storing import counted, kept
from tests.support.faults import at_once
from tests.support.workers.expiring import Expirer

PATH = "/v1/tenant/settings"
DEFAULTS = {
    "bundle_visibility": "private",
    "bundle_retention_days": None,
    "anchoring_enabled": True,
    "notification_email": None,
}


def updates(api: Api) -> list[dict[str, Any]]:
    return list(api.get("/v1/audit?action=settings.update&order=asc").json["data"])


def test_all_four_have_defaults_change_and_are_read_back(api: ApiOf) -> None:
    answer = api().get(PATH)
    assert (answer.status_code, answer.json) == (200, DEFAULTS)
    wanted = {
        "bundle_visibility": "public",
        "bundle_retention_days": 3650,
        "anchoring_enabled": False,
        "notification_email": "security@example.com",
    }
    assert api().patch(PATH, wanted).json == wanted
    assert api().get(PATH).json == wanted
    cleared = {"bundle_retention_days": None, "notification_email": None}
    assert api().patch(PATH, cleared).json == wanted | cleared


def test_each_change_is_one_entry_with_old_and_new_values_but_of_the_address(api: ApiOf) -> None:
    for nothing in ({}, {"anchoring_enabled": True}, DEFAULTS):
        assert api().patch(PATH, nothing).json == DEFAULTS
    api().patch(PATH, {"bundle_visibility": "public", "bundle_retention_days": 30})
    answer = api().patch(PATH, {"bundle_retention_days": 60, "bundle_visibility": "public"})
    for address in ("first@example.com", "second@example.com", None):
        assert api().patch(PATH, {"notification_email": address}).status_code == 200
    entries = updates(api())
    assert [entry["details"] for entry in entries] == [
        {
            "bundle_visibility": {"old": "private", "new": "public"},
            "bundle_retention_days": {"old": None, "new": 30},
        },
        {"bundle_retention_days": {"old": 30, "new": 60}},
        {"notification_email": {"change": "set"}},
        {"notification_email": {"change": "changed"}},
        {"notification_email": {"change": "cleared"}},
    ]
    assert entries[1]["request_id"] == answer.headers["x-request-id"]
    assert entries[1]["target"] == {"type": "tenant", "id": entries[1]["tenant_id"]}
    assert "example.com" not in api().get("/v1/audit").text


def test_a_wrong_value_is_refused_by_name_and_nothing_changes(api: ApiOf) -> None:
    body = {"bundle_retention_days": 3651, "anchoring_enabled": None, "bundle_visibility": "public"}
    assert pointers(api().patch(PATH, body)) == ["/anchoring_enabled", "/bundle_retention_days"]
    assert api().get(PATH).json == DEFAULTS
    assert updates(api()) == []


def test_no_tenant_goes_below_the_operator_s_floor_and_one_that_is_below_stays(
    api: ApiOf, app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api().patch(PATH, {"bundle_retention_days": 30}).status_code == 200
    here = app.extensions[EXTENSION]
    monkeypatch.setattr(here, "settings", replace(here.settings, min_retention_days=183))
    answer = refused(api().patch(PATH, {"bundle_retention_days": 182}), 422, "validation-failed")
    (error,) = answer["errors"]
    assert error["pointer"] == "/bundle_retention_days"
    assert "at least 183 days" in error["detail"]
    as_it_is = {"bundle_retention_days": 30, "bundle_visibility": "public"}
    assert api().patch(PATH, as_it_is).json["bundle_visibility"] == "public"
    for days in (183, None):
        assert api().patch(PATH, {"bundle_retention_days": days}).status_code == 200
    assert pointers(api().patch(PATH, {"bundle_retention_days": 30})) == ["/bundle_retention_days"]


@pytest.mark.parametrize(
    "address",
    [
        "nobody",
        "a@localhost",
        "@example.com",
        "a@",
        "a@@example.com",
        "Alice <a@example.com>",
        "<a@example.com>",
        "a@example.com, b@example.com",
        "a@example.com;b@example.com",
        "a@example.com\r\nBcc: b@example.com",
        "a@example.com\n",
        " a@example.com",
        "a b@example.com",
        '"a b"@example.com',
        "a..b@example.com",
        ".a@example.com",
        "a@[127.0.0.1]",
        "a@192.0.2.1",
        "a@example.com.",
        "a@-example.com",
        "a@exam_ple.com",
        "a@example.com\u0000",
        "ä@example.com",
        "a@b\u00fccher.example",
        "x" * 65 + "@example.com",
        "a@" + ("x" * 60 + ".") * 4 + "example.com",
    ],
)
def test_what_is_not_one_plain_address_is_refused(api: ApiOf, address: str) -> None:
    answer = api().patch(PATH, {"notification_email": address})
    assert pointers(answer) == ["/notification_email"]
    if "\u00fc" in address:
        assert "xn--" in answer.json["errors"][0]["detail"]


@pytest.mark.parametrize(
    "address", ["o'neil+digest@mail.example.co.uk", "a@xn--bcher-kva.example", "1@2.x3"]
)
def test_plain_addresses_are_kept_as_they_were_sent(api: ApiOf, address: str) -> None:
    answer = api().patch(PATH, {"notification_email": address})
    assert answer.json["notification_email"] == address


def test_concurrent_changes_leave_a_chain_whose_old_values_are_those_replaced(api: ApiOf) -> None:
    said = at_once(6, lambda each: api().patch(PATH, {"bundle_retention_days": each + 1}))
    assert {answer.status_code for answer in said} == {200}
    changes = [entry["details"]["bundle_retention_days"] for entry in updates(api())]
    assert [change["old"] for change in changes] == [None, *[c["new"] for c in changes[:-1]]]
    assert len(changes) == 6
    assert api().get(PATH).json["bundle_retention_days"] == changes[-1]["new"]


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
    at_once(6, lambda _: [make_record(api(), session["id"]) for _ in range(4)])

    assert counted(database, tenant.id) == kept(database, tenant.id)
    assert counted(database, tenant.id).records == 24


def test_a_transaction_that_is_rolled_back_has_stored_nothing(
    database: Database, api: ApiOf, tenant: FreshTenant, session: dict[str, Any]
) -> None:
    make_record(api(), session["id"])
    before = counted(database, tenant.id)
    with database.transaction(tenant.id) as opened:
        opened.execute(text("DELETE FROM bundles"))
        assert bundles.of_each(opened)[tenant.id] == StorageUse(1, 0)
        opened.rollback()
    assert counted(database, tenant.id) == before
