"""The audit chain over HTTP: listed, exported, verified."""

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import pytest
import rfc8785
from sqlalchemy import Engine, text

from app import ids
from app.api.resources.audit import audit as audit_routes
from app.core.log.status import NO_HEAD
from app.errors import LogDamaged
from app.ledger import hash_chain
from app.settings import Settings
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.callers.api import Api, ApiOf, FreshTenant, Mint
from tests.support.callers.making import make_session, pin_of, pointers, refused, shifted

pytestmark = pytest.mark.usefixtures("forgotten")

NDJSON = {"Accept": "application/x-ndjson"}
MEMBERS = {
    "seq",
    "at",
    "tenant_id",
    "actor",
    "action",
    "target",
    "details",
    "request_id",
    "prev_hash",
    "hash",
}


def change_settings(api: Api, times: int) -> None:
    for number in range(times):
        answer = api.patch("/v1/tenant/settings", {"bundle_retention_days": number + 1})
        assert answer.status_code == 200


def entries(api: Api, query: str = "") -> list[dict[str, Any]]:
    return list(api.get(f"/v1/audit?{query}").json["data"])


def numbers(api: Api, query: str = "") -> list[int]:
    return [entry["seq"] for entry in entries(api, query)]


def export(api: Api) -> list[dict[str, Any]]:
    answer = api.get("/v1/audit", headers=NDJSON)
    assert (answer.status_code, answer.content_type) == (200, "application/x-ndjson")
    assert answer.data.endswith(b"\n")
    return [json.loads(line) for line in answer.data.splitlines()]


def check_chain(chain: list[dict[str, Any]]) -> None:
    """Check a chain as a stranger would, with another implementation of RFC 8785."""
    previous = "0" * 64
    for number, entry in enumerate(chain, start=1):
        assert entry.keys() == MEMBERS
        assert (entry["seq"], entry["prev_hash"]) == (number, previous)
        hashed = {name: value for name, value in entry.items() if name != "hash"}
        previous = sha256(rfc8785.dumps(hashed)).hexdigest()
        assert entry["hash"] == previous


def test_a_chain_begins_with_its_tenant_and_root_key(api: ApiOf) -> None:
    first, second = entries(api(), "order=asc")
    assert (first["action"], second["action"]) == ("tenant.create", "key.mint")
    assert first["actor"] == {"type": "operator", "id": "manage"}


def test_listed_and_exported_entries_can_be_checked_by_anybody(api: ApiOf) -> None:
    change_settings(api(), 3)
    check_chain(entries(api(), "order=asc"))
    check_chain(export(api())[:-1])


def test_newest_first_unless_asked_otherwise(api: ApiOf) -> None:
    change_settings(api(), 3)
    assert numbers(api()) == [5, 4, 3, 2, 1]
    assert numbers(api(), "order=desc") == [5, 4, 3, 2, 1]
    assert numbers(api(), "order=asc") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_in_either_order_hold_every_entry_once_while_others_are_appended(
    api: ApiOf, order: str
) -> None:
    change_settings(api(), 5)
    seen: list[int] = []
    path: str | None = f"/v1/audit?limit=2&order={order}"
    while path:
        page = api().get(path).json
        seen += [entry["seq"] for entry in page["data"]]
        if len(seen) < 5:
            change_settings(api(), 1)
        path = page["next_cursor"] and (
            f"/v1/audit?limit=2&order={order}&cursor={quote(page['next_cursor'])}"
        )
    expected = list(range(1, 8))
    if order == "asc":
        assert seen[:7] == expected
        assert seen == list(range(1, len(seen) + 1))
    else:
        assert seen == expected[::-1]


def test_a_cursor_belongs_to_its_order(api: ApiOf) -> None:
    cursor = api().get("/v1/audit?limit=1&order=asc").json["next_cursor"]
    assert pointers(api().get(f"/v1/audit?limit=1&cursor={cursor}")) == ["/cursor"]


def test_the_chain_is_filtered_by_action_and_time(api: ApiOf) -> None:
    change_settings(api(), 3)
    assert numbers(api(), "action=settings.update") == [5, 4, 3]
    assert numbers(api(), "action=no.such") == []
    at = entries(api())[1]["at"]
    assert numbers(api(), f"since={shifted(at, 0)}") == [5, 4]
    assert numbers(api(), f"since={shifted(at, 1)}") == [5]
    assert numbers(api(), f"until={shifted(at, 0)}") == [3, 2, 1]
    assert numbers(api(), f"until={shifted(at, 1)}&order=asc") == [1, 2, 3, 4]
    assert numbers(api(), f"until={shifted(at, 1)}&action=settings.update") == [4, 3]
    assert numbers(api(), "until=1970-01-01T00:00:00Z") == []
    assert numbers(api(), "since=9999-12-31T23:59:59Z") == []
    assert numbers(api(), "since=0001-01-01T00:00:00Z&limit=1") == [5]


@pytest.mark.parametrize("query", ["order=up", "action=", "since=now", "seq=1", "limit=201"])
def test_a_wrong_filter_is_refused_by_name(api: ApiOf, query: str) -> None:
    assert pointers(api().get(f"/v1/audit?{query}")) == ["/" + query.partition("=")[0]]


def test_an_export_ends_with_its_own_entry_and_a_trailer(api: ApiOf) -> None:
    change_settings(api(), 3)
    *chain, trailer = export(api())
    assert chain[-1]["action"] == "audit.export"
    assert trailer == {
        "type": "trailer",
        "entries": len(chain),
        "head": {"seq": len(chain), "hash": chain[-1]["hash"]},
        "anchors": [],
        "anchors_total": 0,
    }
    assert api().get("/v1/audit/verify").json["head"] == trailer["head"]


def test_an_export_longer_than_one_part_is_whole(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 3)
    change_settings(api(), 9)
    *chain, trailer = export(api())
    check_chain(chain)
    assert trailer["entries"] == len(chain) == 12


def test_what_is_appended_while_an_export_streams_is_not_in_it(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 2)
    change_settings(api(), 5)
    answer = api().get("/v1/audit", headers=NDJSON, buffered=False)
    stream = answer.iter_encoded()
    received = next(stream)
    change_settings(api(), 3)
    received += b"".join(stream)
    *chain, trailer = map(json.loads, received.splitlines())
    check_chain(chain)
    assert trailer["entries"] == len(chain) == 8


def test_an_export_takes_no_filters(api: ApiOf) -> None:
    answer = api().get("/v1/audit?action=key.mint&limit=1", headers=NDJSON)
    assert sorted(pointers(answer)) == ["/action", "/limit"]
    assert numbers(api(), "action=audit.export") == []


def test_an_export_of_a_chain_with_a_hole_breaks_off_before_it(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 2)
    change_settings(api(), 3)
    _execute(
        admin_engine,
        tenant,
        "DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = 3",
    )
    stream = api().get("/v1/audit", headers=NDJSON, buffered=False).iter_encoded()
    check_chain([json.loads(line) for line in next(stream).splitlines()])
    assert list(stream) == [], "no trailer: it is not whole"


def test_an_export_that_breaks_off_under_way_is_told_once_with_its_request(
    api: ApiOf,
    admin_engine: Engine,
    tenant: FreshTenant,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("app.core.verification.export.PART", 2)
    change_settings(api(), 3)
    _execute(
        admin_engine,
        tenant,
        "UPDATE audit_entries SET body = '[1]' WHERE tenant_id = :tenant AND seq = 3",
    )
    capsys.readouterr()
    answer = api().get("/v1/audit", headers=NDJSON | {"X-Request-ID": "an-export"})
    assert [json.loads(line)["seq"] for line in answer.data.splitlines()] == [1, 2]
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (told,) = [line for line in said if line["level"] not in ("info", "debug")]
    assert (told["event"], told["level"]) == ("audit_chain_broken", "critical")
    assert (told["request_id"], told["seq"], told["reason"]) == ("an-export", 3, "not_json")
    with admin_engine.connect() as connection:
        kept = connection.execute(
            text("SELECT seq, reason FROM audit_breaks WHERE tenant_id = :tenant"),
            {"tenant": tenant.id},
        )
        assert [tuple(row) for row in kept] == [(3, "not_json")]


def test_what_else_ends_an_export_is_logged_and_never_a_whole_one(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> bytes:
        raise LogDamaged("An anchor's leaf is missing in the log.")

    monkeypatch.setattr("app.core.verification.export.trailer", fails)
    capsys.readouterr()
    answer = api().get("/v1/audit", headers=NDJSON | {"X-Request-ID": "an-export"})
    check_chain([json.loads(line) for line in answer.data.splitlines()])
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (told,) = [line for line in said if line["event"] == "response_truncated"]
    assert (told["request_id"], told["problem"]) == ("an-export", LogDamaged.slug)


def test_head_exports_nothing_and_appends_nothing(api: ApiOf) -> None:
    answer = api().request("HEAD", "/v1/audit", headers=NDJSON)
    assert (answer.status_code, answer.content_type, answer.data) == (200, NDJSON["Accept"], b"")
    assert numbers(api(), "action=audit.export") == []


def test_an_export_that_cannot_even_begin_is_answered_as_a_broken_chain(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant
) -> None:
    _execute(
        admin_engine, tenant, "DELETE FROM audit_entries WHERE tenant_id = :tenant AND seq = 1"
    )
    answer = api().get("/v1/audit", headers=NDJSON)
    assert refused(answer, 409, "audit-chain-broken")["seq"] == 1


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/html", "text/*;q=0.1"])
def test_other_accept_headers_get_a_page_and_export_nothing(api: ApiOf, accept: str) -> None:
    answer = api().get("/v1/audit", headers={"Accept": accept})
    assert answer.content_type == "application/json"
    assert numbers(api(), "action=audit.export") == []


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


def test_a_chain_that_is_not_anchored_says_since_when(api: ApiOf) -> None:
    off = api().patch("/v1/tenant/settings", {"anchoring_enabled": False})
    assert off.status_code == 200
    anchors = api().get("/v1/audit/verify?full=1").json["anchors"]
    assert (anchors["enabled"], anchors["disabled_since"]) == (False, entries(api())[0]["at"])


def test_a_verification_that_takes_long_is_a_job(
    api: ApiOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.resources.audit.audit._SECONDS", 0.0)
    answers = [api().get("/v1/audit/verify?full=1") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    (place,) = {answer.headers["Location"] for answer in answers}
    assert answers[0].headers["Retry-After"]
    job = api().get(place).json
    assert (job["kind"], job["args"], job["status"]) == ("verify_audit", {"full": "1"}, "queued")


def test_a_third_verification_at_once_is_a_job(api: ApiOf) -> None:
    room = audit_routes._room
    assert room.acquire(blocking=False)
    assert api().get("/v1/audit/verify").status_code == 200
    assert room.acquire(blocking=False)
    try:
        assert api().get("/v1/audit/verify").status_code == 202
    finally:
        room.release(2)
    # Who asks again while there is room need not wait for that job.
    assert api().get("/v1/audit/verify").status_code == 200
    assert api().get("/v1/audit/verify?full=1").status_code == 200
    assert room.acquire(blocking=False)
    room.release()


def test_who_asks_again_within_a_minute_of_a_job_gets_what_it_found(
    api: ApiOf, tenant: FreshTenant, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.resources.audit.audit._SECONDS", 0.0)
    head = entries(api())[0]
    good = "/v1/audit/verify"
    bad = f"/v1/audit/verify?seq=1&hash={head['hash']}"
    places = [api().get(path).headers["Location"] for path in (good, bad)]
    worker = Runtime.open(replace(settings, redis_url=None), threads=1)
    for place in places:
        job_id = ids.parse("job", place.rpartition("/")[2])
        assert job_id is not None
        work_on(worker, tenant.id, job_id)
    worker.close()
    change_settings(api(), 1)
    answers = [api().get(good) for _ in range(2)]
    assert [(answer.status_code, answer.json["entries"]) for answer in answers] == [(200, 2)] * 2
    assert len({answer.json["verified_at"] for answer in answers}) == 1
    problem = refused(api().get(bad), 409, "audit-chain-broken")
    assert (problem["seq"], problem["reason"]) == (1, "other_head")
    assert problem["verified_at"] > answers[0].json["verified_at"]
    monkeypatch.undo()
    assert api().get(good).json["entries"] == 3, (
        "what can be answered at once is never an old answer"
    )


@pytest.mark.parametrize("query", ["since=yesterday", "full=yes", "seq=1", "since=anchor&seq=0"])
def test_a_wrong_wish_is_refused(api: ApiOf, query: str) -> None:
    assert api().get(f"/v1/audit/verify?{query}").status_code == 422


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
        ("seq=1", "/hash"),
        (f"hash={'0' * 64}", "/seq"),
        (f"seq=0&hash={'0' * 64}", "/seq"),
        (f"seq=-1&hash={'0' * 64}", "/seq"),
        (f"seq=01&hash={'0' * 64}", "/seq"),
        (f"seq=1e2&hash={'0' * 64}", "/seq"),
        (f"seq={10**30}&hash={'0' * 64}", "/seq"),
        (f"seq=1&hash={'0' * 63}", "/hash"),
        (f"seq=1&hash={'F' * 64}", "/hash"),
        (f"seq=1&hash={'0' * 63}%0A", "/hash"),
        (f"seq=1&hash={'0' * 64}%0A", "/hash"),
        ("since=anchors", "/since"),
        ("since=anchor&full=1", "/full"),
        (f"chain={'0' * 63}", "/chain"),
    ],
)
def test_half_a_head_and_what_is_none_are_refused(api: ApiOf, query: str, pointer: str) -> None:
    assert pointers(api().get(f"/v1/audit/verify?{query}")) == [pointer]


def test_a_broken_chain_is_a_conflict_that_names_the_first_bad_entry(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant
) -> None:
    change_settings(api(), 5)
    _execute(
        admin_engine,
        tenant,
        "UPDATE audit_entries SET body = convert_to(replace(convert_from(body, 'UTF8'),"
        " 'settings', 'nothings'), 'UTF8') WHERE tenant_id = :tenant AND seq >= 4",
    )
    stored = entries(api(), "order=asc")[3]
    problem = refused(api().get("/v1/audit/verify"), 409, "audit-chain-broken")
    assert problem["seq"] == 4
    assert problem["expected"] == stored["hash"]
    assert problem["found"] != stored["hash"]


_NAMELESS = json.dumps(dict.fromkeys(sorted(hash_chain.MEMBERS)))


@pytest.mark.parametrize("body", ["", "null", "[1]", "\\xff", "{}", _NAMELESS])
def test_a_page_with_an_entry_that_cannot_be_read_is_a_broken_chain_and_no_crash(
    api: ApiOf, admin_engine: Engine, tenant: FreshTenant, body: str
) -> None:
    change_settings(api(), 2)
    _execute(
        admin_engine,
        tenant,
        "UPDATE audit_entries SET body = CAST(:body AS bytea)"
        " WHERE tenant_id = :tenant AND seq = 3",
        body=body,
    )
    assert refused(api().get("/v1/audit"), 409, "audit-chain-broken")["seq"] == 3
    assert numbers(api(), "limit=1") == [4]


def test_the_chain_is_the_whole_tenants_and_no_pinned_key_sees_it(api: ApiOf, mint: Mint) -> None:
    pinned = api(mint("admin", pin_of(make_session(api()))))
    before = numbers(api())
    for path in ("/v1/audit", "/v1/audit/verify"):
        refused(pinned.get(path), 403, "pinned-key")
    refused(pinned.get("/v1/audit", headers=NDJSON), 403, "pinned-key")
    assert numbers(api()) == before


def test_a_reader_lists_exports_and_verifies(api: ApiOf, mint: Mint) -> None:
    reader = api(mint("read"))
    assert numbers(reader) == [3, 2, 1]
    assert export(reader)[-2]["actor"]["role"] == "read"
    assert reader.get("/v1/audit/verify").json["entries"] == 4


def test_a_stranger_sees_a_chain_of_its_own(api: ApiOf, other_tenant: FreshTenant) -> None:
    change_settings(api(), 3)
    stranger = api(other_tenant.root_key)
    assert numbers(stranger) == [2, 1]
    cursor = api().get("/v1/audit?limit=1").json["next_cursor"]
    assert pointers(stranger.get(f"/v1/audit?limit=1&cursor={cursor}")) == ["/cursor"]


def _execute(admin_engine: Engine, tenant: FreshTenant, statement: str, **values: Any) -> None:
    with admin_engine.begin() as connection:
        done = connection.execute(text(statement), {"tenant": tenant.id} | values)
        assert done.rowcount > 0
