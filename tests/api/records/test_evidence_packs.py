"""The evidence pack over HTTP: asked for, waited for, taken whole or in parts, and audited."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from threading import BoundedSemaphore
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import Engine

from app import ids
from app.api.http.responses import long_poll
from app.core.jobs import job_rows
from app.core.packs import building, pack_evidence, pack_requests, store
from app.evidence import pack
from app.lib.crypto.sealing import MasterKeys
from app.settings import Settings
from tests.support.callers.api import Answer
from tests.support.callers.making import make_share_link, refused
from tests.support.evidence.packing import (
    AT_ONCE,
    Packer,
    execute,
    files_in,
    packer,
    parts_of,
    path_of,
    record_id,
    set_up_as,
    stored,
)
from tests.support.faults import until
from tests.support.secrets import MASTER_KEYS_SETTING

__all__ = ["packer"]


def token_to(packer: Packer, record: dict[str, Any]) -> str:
    return str(make_share_link(packer.api(), record["id"])["url"]).rpartition("/")[2]


def exports(packer: Packer) -> list[tuple[str, str]]:
    """Return who has taken packs, by the audit chain, oldest first."""
    listed = packer.api().get("/v1/audit?action=evidence.export&order=asc&limit=200").json["data"]
    return [(entry["actor"]["type"], entry["actor"]["id"]) for entry in listed]


def test_until_it_is_built_the_answer_says_how_far_it_is(packer: Packer) -> None:
    record = packer.record()
    answer = packer.ask(record)
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"https://records.test{path_of(record)}"
    assert answer.headers["Retry-After"] == "1"
    assert answer.headers["Preference-Applied"] == "wait=0"
    job = answer.json["job"]
    assert (job["kind"], job["status"]) == ("evidence_pack", "queued")
    assert job["progress"] == {"record_id": record["id"], "phase": "queued", "bytes": 0}
    assert packer.api().get(f"/v1/jobs/{job['id']}").json == job
    assert packer.ask(record).json["job"]["id"] == job["id"]
    packer.work()
    done = packer.api().get(f"/v1/jobs/{job['id']}").json
    assert (done["status"], done["progress"]["phase"]) == ("succeeded", "built")
    assert packer.api().request("POST", f"/v1/jobs/{job['id']}/cancel").status_code == 409


def test_a_built_pack_is_answered_with_all_that_tells_what_it_is(packer: Packer) -> None:
    record = packer.record()
    data = packer.built(record)
    answer = packer.ask(record)
    assert answer.content_type == "application/zip"
    assert answer.content_length == len(data)
    assert answer.headers["ETag"] == f'"{sha256(data).hexdigest()}"'
    name = f"{record['id']}-evidence.zip"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["x-service-evidence"] == "current"
    assert "Preference-Applied" not in answer.headers, "nobody waited"
    head = packer.api().request("HEAD", path_of(record), headers=AT_ONCE)
    assert (head.status_code, head.data, head.content_length) == (200, b"", len(data))
    assert head.headers["ETag"] == answer.headers["ETag"]


@pytest.mark.parametrize("part_bytes", [10_000, 10_000_000])
def test_any_range_is_that_part(
    packer: Packer, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", part_bytes)
    record = packer.record()
    data = packer.built(record)
    size, part = len(data), store.PART_BYTES
    for start, stop in (
        (0, 1),
        (0, size),
        (part - 1, part + 1),
        (part, part * 2),
        (size - 1, size),
    ):
        if start >= size:
            continue
        answer = packer.ask(record, Range=f"bytes={start}-{stop - 1}")
        assert (answer.status_code, answer.data) == (206, data[start:stop])
    assert packer.ask(record, Range="bytes=-5").data == data[-5:]
    etag = packer.ask(record).headers["ETag"]
    assert packer.ask(record, Range="bytes=0-3", **{"If-Range": '"other"'}).data == data
    assert packer.ask(record, **{"If-None-Match": etag}).status_code == 304
    refused(packer.ask(record, Range=f"bytes={size}-"), 416, "range-not-satisfiable")
    refused(packer.ask(record, **{"If-Match": '"other"'}), 412, "precondition-failed")


def test_ten_at_once_begin_one_job(packer: Packer) -> None:
    record = packer.record()
    together = threading.Barrier(10)

    def ask(_: int) -> Answer:
        together.wait()
        return packer.ask(record)

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, range(10)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json["job"]["id"] for answer in answers}) == 1
    assert len(packer.jobs()) == 1


def working(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], bool]]:
    """Let a worker build while a request waits for it: at the first poll of each."""
    polls: list[Callable[[], bool]] = []
    poll = long_poll._poll  # it holds a thread

    def polling(settled: Callable[[], bool], until: float) -> None:
        polls.append(settled)
        packer.work()
        poll(settled, until)

    monkeypatch.setattr(long_poll, "_poll", polling)
    return polls


def test_a_caller_with_a_key_waits_for_it(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = working(packer, monkeypatch)
    first, second = packer.record(), packer.record()
    answer = packer.api().get(path_of(first))
    assert files_in(answer.data)
    assert "Preference-Applied" not in answer.headers
    answer = packer.api().get(path_of(second), headers={"Prefer": "wait=5"})
    assert (answer.status_code, answer.headers["Preference-Applied"]) == (200, "wait=5")
    assert len(polls) == 2
    answer = packer.api().get(path_of(second), headers={"Prefer": "wait=5"})
    assert (answer.status_code, len(polls)) == (200, 2)
    assert "Preference-Applied" not in answer.headers, "there was nothing to wait for"


def test_nobody_waits_longer_than_was_said(packer: Packer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait_until(settled: Callable[[], bool], seconds: float, *, with_key: bool) -> bool:
        assert with_key
        waits.append(seconds)
        assert not settled()
        return True

    monkeypatch.setattr(long_poll, "wait_until", wait_until)
    record = packer.record()
    for said, waited, applied in (
        (None, [10.0], None),
        ("wait=3", [3], "wait=3"),
        ("foo; bar, Wait = 3 ;x=y", [3], "wait=3"),
        ("wait=99999", [15], "wait=15"),
        ("respond-async", [], "respond-async"),
        ("respond-async, wait=2", [2], "wait=2"),
        ("wait=2, wait=9", [2], "wait=2"),
        ("wait=-1", [10.0], None),
        ("wait=soon, x", [10.0], None),
    ):
        waits.clear()
        headers = {} if said is None else {"Prefer": said}
        answer = packer.api().get(path_of(record), headers=headers)
        assert (answer.status_code, waits) == (202, waited), said
        assert answer.headers.get("Preference-Applied") == applied, said


def test_who_waits_in_vain_is_asked_to_come_back(packer: Packer) -> None:
    answer = packer.api().get(path_of(packer.record()), headers={"Prefer": "wait=1"})
    assert (answer.status_code, answer.headers["Preference-Applied"]) == (202, "wait=1")


def test_more_than_a_few_are_not_made_to_wait_and_not_told_that_they_were(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    monkeypatch.setattr(long_poll, "_room", BoundedSemaphore(1))
    assert long_poll._room.acquire(blocking=False)  # by somebody else's request
    answer = packer.api().get(path_of(record), headers={"Prefer": "wait=15"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (202, "1")
    assert "Preference-Applied" not in answer.headers


def test_a_job_that_waits_for_its_next_try_is_not_waited_for(
    packer: Packer, admin_engine: Engine
) -> None:
    record = packer.record()
    packer.ask(record)
    execute(
        admin_engine,
        "UPDATE jobs SET status = 'retrying', run_at = clock_timestamp() + interval '5 min'"
        " WHERE id = :id",
        id=packer.jobs()[0].id,
    )
    answer = packer.api().get(path_of(record), headers={"Prefer": "wait=15"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (202, "60")
    assert "Preference-Applied" not in answer.headers


def test_those_who_wait_leave_threads_and_connections_to_others() -> None:
    done = threading.Event()
    settled = done.is_set

    with ThreadPoolExecutor(long_poll.AT_ONCE) as pool:
        waits = [pool.submit(long_poll.wait_until, settled, 600) for _ in range(long_poll.AT_ONCE)]
        until(lambda: not long_poll._room._value)
        # No room: at once, and not after ten minutes.
        assert long_poll.wait_until(settled, 600) is False
        done.set()
        assert all(wait.result() for wait in waits)
    assert long_poll.wait_until(settled, 30) is True


def test_a_link_gets_its_pack_and_is_not_made_to_wait_unasked(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    token = token_to(packer, record)
    path = f"{path_of(record)}?share_token={token}"
    monkeypatch.setattr(long_poll, "wait_until", lambda *_, **__: pytest.fail("a link waits"))
    answer = packer.api(None).get(path)
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"https://records.test{path}"
    assert "Preference-Applied" not in answer.headers
    assert answer.json["job"].keys() == {"status", "progress"}, "the rest is for the tenant"
    by_header = packer.ask(record, None, **{"x-share-token": token})
    assert by_header.headers["Location"] == f"https://records.test{path_of(record)}"
    packer.work()
    answer = packer.api(None).get(answer.headers["Location"])
    assert files_in(answer.data)
    assert answer.headers["Cache-Control"] == "private, no-store"


@pytest.mark.parametrize("is_public", [False, True])
def test_who_has_no_key_waits_when_asked_to_and_not_for_long(
    packer: Packer, monkeypatch: pytest.MonkeyPatch, *, is_public: bool
) -> None:
    record = packer.record()
    path = f"{path_of(record)}?share_token={token_to(packer, record)}"
    if is_public:
        packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
        path = path_of(record)
    polls = working(packer, monkeypatch)
    answer = packer.api(None).get(path, headers={"Prefer": "respond-async"})
    assert (answer.status_code, len(polls)) == (202, 0)
    assert answer.headers["Preference-Applied"] == "respond-async"
    answer = packer.api(None).get(path, headers={"Prefer": "wait=99"})
    assert (answer.status_code, len(polls)) == (200, 1)
    assert answer.headers["Preference-Applied"] == "wait=10"
    assert files_in(answer.data)


def test_those_without_a_key_take_no_place_of_those_with_one(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = packer.record(), packer.record()
    path = f"{path_of(first)}?share_token={token_to(packer, first)}"
    monkeypatch.setattr(long_poll, "_room_without_key", BoundedSemaphore(1))
    assert long_poll._room_without_key.acquire(blocking=False)  # by somebody else's request
    polls = working(packer, monkeypatch)
    answer = packer.api(None).get(path, headers={"Prefer": "wait=9"})
    assert (answer.status_code, len(polls)) == (202, 0)
    assert "Preference-Applied" not in answer.headers
    assert packer.api().get(path_of(second)).status_code == 200
    assert len(polls) == 1


def test_what_is_public_is_for_anybody_and_keys_may_wait_for_it(
    packer: Packer, monkeypatch: pytest.MonkeyPatch, mint: Callable[..., str]
) -> None:
    packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    first, second = packer.record(), packer.record()
    for nobody in (None, "svc_" + "0" * 46):
        answer = packer.ask(first, nobody)
        assert (answer.status_code, answer.json["job"]["status"]) == (202, "queued")
        assert answer.json["job"].keys() == {"status", "progress"}
    packer.work()
    answer = packer.ask(first, None)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-cache")
    polls = working(packer, monkeypatch)
    assert packer.api(mint("read")).get(path_of(second)).status_code == 200
    assert polls


def test_each_who_takes_a_pack_is_audited_once(packer: Packer, mint: Callable[..., str]) -> None:
    record = packer.record()
    token = token_to(packer, record)
    key = mint("read")
    packer.ask(record)
    packer.work()
    assert exports(packer) == [], "nobody has it yet"
    etag = packer.api().request("HEAD", path_of(record)).headers["ETag"]
    assert packer.ask(record, **{"If-None-Match": etag}).status_code == 304
    packer.ask(record, Range="bytes=999999999-")
    assert exports(packer) == [], "nobody took a byte"
    for _ in range(2):
        packer.ask(record, key, Range="bytes=5-9")
        packer.ask(record, key)
        packer.ask(record, None, **{"x-share-token": token})
    packer.api().patch("/v1/tenant/settings", {"bundle_visibility": "public"})
    for _ in range(2):
        packer.ask(record, None)
        packer.ask(record, None, **{"x-share-token": token})
        packer.ask(record, key)
    key_id = packer.api(key).get("/v1/keys/self").json["id"]
    (link,) = packer.api().get(f"/v1/records/{record['id']}/share-links").json["data"]
    assert exports(packer) == [
        ("key", key_id),
        ("link", link["id"]),
        ("system", "record-service"),
    ]
    entry = packer.api().get("/v1/audit?action=evidence.export&order=asc&limit=1").json["data"][0]
    assert entry["target"] == {"type": "record", "id": record["id"]}
    assert entry["details"]["sha256"] == etag.strip('"')
    assert packer.api().get("/v1/audit/verify").status_code == 200


def test_who_waits_for_a_better_pack_gets_that(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    before = packer.built(record)
    monkeypatch.setattr(pack_evidence, "VERSION", "9.9.9")
    polls = working(packer, monkeypatch)
    answer = packer.api().get(path_of(record))
    assert (answer.data, answer.headers["x-service-evidence"]) == (before, "outdated")
    assert polls == [], "what is there is answered at once"
    answer = packer.api().get(path_of(record), headers={"Prefer": "wait=9"})
    assert answer.headers["x-service-evidence"] == "current"
    assert answer.data != before


def test_a_download_goes_on_while_a_better_pack_takes_its_place(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    before = packer.built(record)
    answer = packer.api().get(path_of(record), buffered=False)
    parts = parts_of(answer)
    begun = next(parts)
    monkeypatch.setattr(pack_evidence, "VERSION", "9.9.9")
    packer.ask(record)
    packer.work()
    assert packer.ask(record).data != before
    assert begun + b"".join(parts) == before


def test_what_expires_under_way_is_cut_short(
    packer: Packer,
    admin_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    packer.built(record)
    named = {"X-Request-ID": "a-download"}
    parts = parts_of(packer.api().get(path_of(record), headers=named, buffered=False))
    next(parts)
    packer.api().patch("/v1/tenant/settings", {"bundle_retention_days": 1})
    execute(
        admin_engine,
        "UPDATE records SET created_at = created_at - interval '2 days' WHERE id = :id",
        id=record_id(record),
    )
    capsys.readouterr()
    assert list(parts) == [], "it ends short of its Content-Length"
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in said] == ["pack_deleted"]
    assert said[0]["request_id"] == "a-download"
    assert packer.ask(record).status_code == 410


FLIP = """
UPDATE evidence_pack_parts SET bytes = set_byte(bytes, 99, get_byte(bytes, 99) # 1)
 WHERE number = :number AND pack_id IN (SELECT id FROM evidence_packs WHERE record_id = :id)
"""
SWAP = """
UPDATE evidence_pack_parts AS p SET bytes = other.bytes FROM evidence_pack_parts AS other
 WHERE other.pack_id = p.pack_id AND p.number + other.number = 1
   AND p.pack_id IN (SELECT id FROM evidence_packs WHERE record_id = :id)
"""


def test_a_part_that_was_changed_is_never_given_out(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    data = packer.built(record)
    execute(admin_engine, FLIP, id=record_id(record), number=0)
    answer = packer.ask(record)
    refused(answer, 503, "evidence-pack-unreadable")
    assert answer.headers["Retry-After"] == "1"
    assert stored(admin_engine, record) == [], "the next who asks gets a whole one"
    assert packer.built(record) == data
    execute(admin_engine, SWAP, id=record_id(record))
    refused(packer.ask(record), 503, "evidence-pack-unreadable")
    assert packer.built(record) == data
    execute(admin_engine, FLIP, id=record_id(record), number=2)
    parts = parts_of(packer.api().get(path_of(record), buffered=False))
    assert next(parts) + next(parts) == data[:40_000]
    assert list(parts) == [], "it ends short of its Content-Length"
    assert packer.built(record) == data


def test_a_pack_of_another_record_does_not_open(packer: Packer, admin_engine: Engine) -> None:
    record, other = packer.record(), packer.record()
    packer.built(other)
    execute(
        admin_engine,
        "UPDATE evidence_packs SET record_id = :id WHERE record_id = :other",
        id=record_id(record),
        other=record_id(other),
    )
    refused(packer.ask(record), 503, "evidence-pack-unreadable")


@pytest.mark.usefixtures("forgotten")
def test_a_pack_is_given_out_also_where_the_keys_that_sign_do_not_open(
    packer: Packer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a new master key, when the one before was dropped too soon."""
    record, without = packer.record(), packer.record()
    old, new = MASTER_KEYS_SETTING, MasterKeys.generate()
    with set_up_as(packer, settings, master_keys=MasterKeys.parse(f"{new},{old}")) as both:
        data = both.built(record)
    with set_up_as(packer, settings, master_keys=MasterKeys.parse(new)) as later:
        answer = later.ask(record)
        assert (answer.data, answer.headers["x-service-evidence"]) == (data, "current")
        monkeypatch.setattr(pack_evidence, "VERSION", "9.9.9")
        assert later.ask(record).headers["x-service-evidence"] == "outdated"
        assert later.ask(without).status_code == 202
        for job in later.work()[-2:]:
            assert (job.status, job.error) == ("dead", building.NO_KEY)
        assert "MASTER_KEYS" in building.NO_KEY
        answer = later.ask(record)
        assert (answer.data, answer.headers["x-service-evidence"]) == (data, "outdated")
        refused(later.ask(without), 503, "evidence-pack-failed")


@pytest.mark.usefixtures("forgotten")
def test_a_part_whose_master_key_is_missing_is_kept_for_when_it_is_back(
    packer: Packer,
    settings: Settings,
    admin_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 20_000)
    record = packer.record()
    data = packer.built(record)
    other = MasterKeys.generate()
    capsys.readouterr()
    with set_up_as(packer, settings, master_keys=MasterKeys.parse(other)) as without:
        answer = without.ask(record)
        problem = refused(answer, 503, "evidence-pack-unreadable")
        assert answer.headers["Retry-After"] == "60"
        assert "master key" in problem["detail"]
        said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        (line,) = [each for each in said if each["event"] == "pack_without_key"]
        assert (line["level"], line["record"]) == ("error", record["id"])
    # A process with both, and a part that only the other key sealed, in mid-download.
    sealed = MasterKeys.parse(other).seal(b"x", "anywhere")
    execute(admin_engine, PUT, id=record_id(record), number=2, bytes=sealed)
    parts = parts_of(packer.api().get(path_of(record), buffered=False))
    assert next(parts) + next(parts) == data[:40_000]
    assert list(parts) == [], "it ends short of its Content-Length"
    assert [each[:2] for each in stored(admin_engine, record)] == [(True, False)]
    assert packer.ask(record, Range="bytes=0-9").data == data[:10]


PUT = """
UPDATE evidence_pack_parts SET bytes = :bytes
 WHERE number = :number AND pack_id IN (SELECT id FROM evidence_packs WHERE record_id = :id)
"""


def test_who_may_read_jobs_sees_what_a_pack_s_job_did(packer: Packer) -> None:
    record = packer.record()
    packer.built(record)
    (listed,) = packer.api().get("/v1/jobs?kind=evidence_pack").json["data"]
    assert listed["args"] == {"record_id": record["id"]}
    assert listed["progress"]["bytes"] == listed["progress"]["total"]
    with packer.runtime.database.transaction(packer.tenant.id) as session:
        job = job_rows.get(session, packer.tenant.id, ids.parse("job", listed["id"]))
        assert pack_requests.is_settled(session, packer.tenant.id, job.id)


def test_the_document_says_what_each_answer_is(client: FlaskClient) -> None:
    paths = client.get("/openapi.json").json["paths"]  # type: ignore[index]
    answers = paths["/v1/records/{record_id}/evidence.zip"]["get"]["responses"]
    assert {status: list(answers[status]["content"]) for status in ("200", "202", "206")} == {
        "200": ["application/zip"],
        "202": ["application/json"],
        "206": ["application/zip"],
    }
    assert {"Location", "Retry-After", "Preference-Applied"} <= answers["202"]["headers"].keys()
    assert {"ETag", "Content-Disposition", "Preference-Applied"} <= answers["200"]["headers"].keys()
    assert {"ETag", "Content-Range"} <= answers["206"]["headers"].keys()
    verifier = paths["/verify.py"]["get"]
    assert verifier["security"] == []
    assert list(verifier["responses"]["200"]["content"]) == ["text/x-python"]


def test_the_verifier_is_served_as_it_is_in_packs(packer: Packer, client: FlaskClient) -> None:
    answer = client.get("/verify.py")
    assert answer.data == pack.verifier_source()
    assert answer.content_type == "text/x-python; charset=utf-8"
    assert answer.headers["ETag"] == f'"{sha256(answer.data).hexdigest()}"'
    again = client.get("/verify.py", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    assert files_in(packer.built(packer.record()))["verify.py"] == answer.data
    assert sha256(answer.data).hexdigest() in client.get("/openapi.json").text
