"""A record over HTTP: what is accepted, signed and answered, and its room while it is large."""

import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import pytest
from flask import Flask

from app import ids, metrics
from app.api.http import large_work
from app.api.http.services import EXTENSION
from app.core import signing_keys
from app.core.callers import Caller, Role
from app.core.records import bundles
from app.core.records.intake import Asked, Intake
from app.core.records.signing import NewRecord
from app.database import Database
from app.errors import SessionCompleted
from app.evidence import bundle
from app.lib import fair_shares
from app.settings import Settings
from tests.api.records.steps import STEP
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import (
    make_record,
    make_session,
    pin_of,
    pointers,
    record_of,
    refused,
    revoke,
    uuid_of,
)
from tests.support.faults import until


def test_a_record_is_answered_with_what_proves_it(api: ApiOf, session: dict[str, Any]) -> None:
    made = make_record(api(), session["id"], labels={"env": "production"})
    assert made["session_id"] == session["id"]
    assert made["agent_id"] == session["agent_id"]
    assert made["principal"] == session["principal"]
    assert made["labels"] == {"env": "production"}
    assert made["occurred_at"] == made["created_at"]
    assert made["bundle"]["expired"] is False
    assert made["log"] == {"status": "pending", "index": None}
    assert "content" not in made
    assert api().get(f"/v1/records/{made['id']}").json == made


def test_the_bundle_is_what_was_posted_signed_by_the_key_it_names(
    api: ApiOf,
    session: dict[str, Any],
    database: Database,
    settings: Settings,
    tenant: FreshTenant,
) -> None:
    steps = [STEP | {"inputs": ["order.json"], "outputs": {"total": 12.5}, "attributes": {"n": 1}}]
    made = make_record(
        api(), session["id"], content={"z": 1e21, "ä": None}, steps=steps, labels={"a": "b"}
    )
    with database.transaction(tenant.id) as opened:
        raw = bundles.read(opened, settings.master_keys, tenant.id, uuid_of(made["id"]))
        key = signing_keys.public_key(opened, made["bundle"]["key_id"])
    assert raw is not None
    assert key.verifies(base64.b64decode(made["bundle"]["signature"]), raw)
    assert key.id == made["bundle"]["key_id"]
    assert sha256(raw).hexdigest() == made["bundle"]["sha256"]
    assert len(raw) == made["bundle"]["size"]
    kept = bundle.read(raw)
    assert kept["content"] == {"z": 1e21, "ä": None}
    assert kept["record"]["id"] == made["id"]
    assert kept["record"]["tenant_id"] == f"ten_{tenant.id.hex}"
    assert kept["steps"][0]["ended_at"] == "2026-01-31T12:00:00.500000Z"
    assert kept["steps"][0]["events"] == []
    assert kept["key_id"] == made["bundle"]["key_id"]


def test_a_pinned_key_finds_words_within_its_pin_alone(
    api: ApiOf, session: dict[str, Any], mint: Callable[..., str]
) -> None:
    pinned = api(mint("write", pin_of(session)))
    mine = make_record(pinned, session["id"], title="mine alone")
    make_record(api(), make_session(api())["id"], title="mine not")
    assert [row["id"] for row in pinned.get("/v1/records?q=mine").json["data"]] == [mine["id"]]


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"labels": {"a:b": "c"}}, "/labels/a:b"),
        ({"labels": {str(n): "" for n in range(65)}}, "/labels"),
        ({"steps": [{}]}, "/steps/0/ended_at"),
        ({"steps": [STEP | {"ended_at": "2026-01-31T11:00:00Z"}]}, "/steps/0/ended_at"),
        ({"steps": [STEP | {"status": "fine"}]}, "/steps/0/status"),
        ({"steps": [STEP | {"inputs": [1]}]}, "/steps/0/inputs"),
        ({"steps": [STEP | {"events": [{"name": "x"}]}]}, "/steps/0/events/0/at"),
    ],
)
def test_what_is_wrong_is_pointed_to(
    api: ApiOf, session: dict[str, Any], fields: dict[str, Any], pointer: str
) -> None:
    assert pointer in pointers(api().post("/v1/records", record_of(session["id"], **fields)))


def test_content_must_be_there_and_may_be_null(api: ApiOf, session: dict[str, Any]) -> None:
    body = record_of(session["id"])
    del body["content"]
    assert pointers(api().post("/v1/records", body)) == ["/content"]
    make_record(api(), session["id"], content=None)


def test_a_record_may_have_8_mib_and_no_more(api: ApiOf, session: dict[str, Any]) -> None:
    empty = len(str(record_of(session["id"], content="")))
    large = make_record(api(), session["id"], content="x" * (8 * 1024 * 1024 - empty - 100))
    assert large["bundle"]["size"] > 8 * 1024 * 1024 - 1000
    too_large = api().post("/v1/records", record_of(session["id"], content="x" * 8 * 1024 * 1024))
    assert "8 MiB" in refused(too_large, 413, "body-too-large")["detail"]


def test_a_record_comes_in_while_another_is_signed(
    database: Database, settings: Settings, tenant: FreshTenant, api: ApiOf
) -> None:
    """Between draft and store a session may be completed, and then takes the record no more."""
    session = make_session(api())
    session_id = uuid_of(session["id"])
    caller = Caller(tenant.id, ids.new(), Role.WRITE, None, "test")
    intake = Intake(database, settings)
    ready = intake.sign(Asked(caller, [NewRecord(session_id, "k", "t", None)], [None]))
    done = api().post(f"/v1/sessions/{session['id']}/complete", {"outcome": "succeeded"})
    assert done.status_code == 200
    with database.transaction(tenant.id) as opened:
        (refusal,) = intake.add_within(opened, ready)
    assert isinstance(refusal, SessionCompleted)
    assert api().get("/v1/records").json["data"] == []


def test_a_large_record_without_room_is_asked_to_come_back_before_it_is_read(
    app: Flask, api: ApiOf, session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_shares, "_WAIT_SECONDS", 0.01)
    large = large_work.LARGE + 1
    here = app.extensions[EXTENSION]
    refusals = here.tally.value(metrics.WEB_REFUSED, "large_work")
    others = ["another tenant", "and another"]
    with here.large.held(others[0]), here.large.held(others[1]):
        answer = api().post("/v1/records", data=b"x" * large, content_type="application/json")
        assert refused(answer, 503, "busy")
        assert answer.headers["Retry-After"]
        make_record(api(), session["id"])
    assert here.tally.value(metrics.WEB_REFUSED, "large_work") == refusals + 1
    answer = api().post("/v1/records", data=b"x" * large, content_type="application/json")
    refused(answer, 400, "malformed-body")


def test_a_key_that_is_revoked_while_its_record_waits_for_room_writes_none(
    app: Flask, api: ApiOf, mint: Mint, session: dict[str, Any]
) -> None:
    key, room = mint("write"), app.extensions[EXTENSION].large
    sent = record_of(session["id"], content="x" * large_work.LARGE)
    others = ["another tenant", "and another"]
    with ThreadPoolExecutor(1) as pool:
        with room.held(others[0]), room.held(others[1]):
            asked = pool.submit(api(key).post, "/v1/records", sent)
            until(lambda: room.in_line.total() == 1)
            revoke(api, key)
        refused(asked.result(), 401, "unauthenticated")
    assert api().get(f"/v1/records?session_id={session['id']}").json["data"] == []
