"""`GET /v1/audit/verify`: reports, jobs, kept heads, breaks."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text

from app.api.resources import audit as audit_routes
from app.core.log.status import NO_HEAD
from app.core.verification import daily as verification_jobs
from app.database import Database
from app.lib.crypto import api_keys
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.api.audit.chains import _execute, change_settings, entries
from tests.support.callers.api import ApiOf, FreshTenant, Mint
from tests.support.callers.making import pointers, refused, uuid_of
from tests.support.database.databases import waiting
from tests.support.evidence.anchoring import anchor_heads
from tests.support.faults import until

pytestmark = pytest.mark.usefixtures("forgotten")


def test_an_intact_chain_says_how_far_it_goes(api: ApiOf) -> None:
    change_settings(api(), 2)
    (newest, *_) = entries(api())
    answer = api().get("/v1/audit/verify")
    assert answer.status_code == 200
    report = dict(answer.json)
    assert report.pop("verified_at") > newest["at"]
    assert len(report.pop("chain")) == 64
    log = report.pop("log")
    assert log is None or log["predecessors"] == []
    assert report == {
        "status": "intact",
        "entries": 4,
        "head": {"seq": 4, "hash": newest["hash"]},
        "anchored_through": None,
        "unanchored_entries": 4,
        "anchors": {
            "enabled": True,
            "disabled_since": None,
            "checked": 0,
            "pending": 0,
            "leaf_index": None,
            "anchored_by": [],
            "timestamps": 0,
            "timestamps_unverified": 0,
            "newest_timestamp": None,
            "cosignatures": 0,
        },
        "head_store": NO_HEAD,
        "unknown_chains": None,
        "unknown_chains_at": None,
    }


def test_a_long_chain_is_verified_by_a_job_whose_progress_is_the_report(
    api: ApiOf,
    tenant: FreshTenant,
    runtime: Runtime,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verification_jobs, "MOST_ENTRIES", 1)
    anchor_heads(database)
    assert api().get("/v1/audit/verify?since=anchor").status_code == 200
    answers = [api().get("/v1/audit/verify?full=1") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    (place,) = {answer.headers["Location"] for answer in answers}
    assert answers[0].headers["Retry-After"]
    job = api().get(place).json
    assert (job["kind"], job["args"], job["status"]) == ("verify_audit", {"full": "1"}, "queued")
    refused(api().get("/v1/audit/verify"), 503, "busy")
    work_on(runtime, tenant.id, uuid_of(place.rpartition("/")[2]))
    job = api().get(place).json
    assert (job["status"], job["progress"]["status"]) == ("succeeded", "intact")
    monkeypatch.undo()
    now = api().get("/v1/audit/verify?full=1").json
    assert now == job["progress"] | {"verified_at": now["verified_at"]}


def test_no_row_of_a_job_answers_for_a_chain(
    api: ApiOf, tenant: FreshTenant, admin_engine: Engine
) -> None:
    """The database's owner writes what they like there."""
    good = api().get("/v1/audit/verify").json
    change_settings(api(), 1)
    with admin_engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO jobs (tenant_id, id, kind, args, dedupe_key, status, progress,"
                " finished_at) VALUES (:tenant, gen_random_uuid(), 'verify_audit', '{}', 'chain',"
                " 'succeeded', :report, now())"
            ),
            {"tenant": tenant.id, "report": json.dumps(good)},
        )
    change = "UPDATE audit_entries SET body = body || ' ' WHERE tenant_id = :tenant AND seq = 2"
    _execute(admin_engine, tenant, change)
    assert refused(api().get("/v1/audit/verify"), 409, "audit-chain-broken")["seq"] == 2


def test_a_third_verification_at_once_is_a_job(api: ApiOf) -> None:
    bulkhead = audit_routes._bulkhead
    assert bulkhead.acquire(blocking=False)
    assert api().get("/v1/audit/verify").status_code == 200
    assert bulkhead.acquire(blocking=False)
    try:
        assert api().get("/v1/audit/verify").status_code == 202
    finally:
        bulkhead.release(2)
    # Who asks again while there is a place need not wait for that job.
    assert api().get("/v1/audit/verify").status_code == 200
    assert api().get("/v1/audit/verify?full=1").status_code == 200
    assert bulkhead.acquire(blocking=False)
    bulkhead.release()


def test_a_kept_head_is_held_against_the_chain(api: ApiOf) -> None:
    kept = api().get("/v1/audit/verify").json["head"]
    change_settings(api(), 2)
    path = f"/v1/audit/verify?seq={kept['seq']}&hash={kept['hash']}"
    assert api().get(path).json["entries"] == 4
    forged = f"/v1/audit/verify?seq={kept['seq']}&hash={'0' * 64}"
    problem = refused(api().get(forged), 409, "audit-chain-broken")
    assert problem["seq"] == kept["seq"]
    assert (problem["expected"], problem["found"]) == ("0" * 64, kept["hash"])
    beyond = f"/v1/audit/verify?seq={10**15}&hash={kept['hash']}"
    assert refused(api().get(beyond), 409, "audit-chain-broken")["seq"] == 5


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("since=anchor&seq=0", "/seq"),
        ("seq=1", "/hash"),
        (f"hash={'0' * 64}", "/seq"),
        (f"seq={10**30}&hash={'0' * 64}", "/seq"),
        (f"seq=1&hash={'F' * 64}", "/hash"),
        (f"seq=1&hash={'0' * 64}%0A", "/hash"),
        ("since=anchor&full=1", "/full"),
        (f"chain={'0' * 63}", "/chain"),
    ],
)
def test_half_a_head_and_what_is_none_are_refused(api: ApiOf, query: str, pointer: str) -> None:
    assert pointers(api().get(f"/v1/audit/verify?{query}")) == [pointer]


def test_a_key_that_is_revoked_during_a_verification_gets_no_report(
    api: ApiOf, mint: Mint, admin_engine: Engine
) -> None:
    change_settings(api(), 2)
    key = mint("read")
    with ThreadPoolExecutor(1) as pool:
        with admin_engine.begin() as holder:
            holder.execute(text("LOCK TABLE audit_entries IN ACCESS EXCLUSIVE MODE"))
            asked = pool.submit(api(key).get, "/v1/audit/verify")
            until(lambda: waiting(admin_engine) > 0)
            digest = {"digest": api_keys.digest(key)}
            revoked = "UPDATE api_keys SET revoked_at = clock_timestamp() WHERE digest = :digest"
            holder.execute(text(revoked), digest)
        refused(asked.result(), 401, "unauthenticated")
