"""Room for large records: refused before the body is read."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from flask import Flask

from app import ids, metrics
from app.api.http import large_work
from app.api.http.services import EXTENSION
from app.core.callers import Caller, Role
from app.core.records.intake import Asked, Intake
from app.core.records.signing import NewRecord
from app.database import Database
from app.errors import SessionCompleted
from app.lib import fair_shares
from app.settings import Settings
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import (
    make_record,
    make_session,
    record_of,
    refused,
    revoke,
    uuid_of,
)
from tests.support.faults import until


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
