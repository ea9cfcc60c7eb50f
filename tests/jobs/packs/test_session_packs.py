"""The pack of a whole session: built by a job, verified whole, and what was tampered with named."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from flask import Flask
from sqlalchemy import Engine, text

from app.api.http.services import EXTENSION
from app.core.packs import store
from app.core.records import records, statements
from app.settings import Settings
from jobs.durable.run_job import work_on
from tests.jobs.packs.test_sealed_sessions import seal
from tests.support.callers.api import Mint
from tests.support.callers.making import (
    make_finding,
    make_session,
    record_of,
    refused,
    uuid_of,
)
from tests.support.database.databases import execute, waiting
from tests.support.evidence.packing import AT_ONCE, Packer, files_in
from tests.support.evidence.verifying import Answer, answer
from tests.support.faults import until
from tests.support.workers.expiring import keep_for
from tests.support.workers.worlds import opened_runtime

NEWER = UUID(int=(1 << 128) - 1)


class Sealed:
    """A sealed session with its records, and its pack."""

    def __init__(self, packer: Packer, count: int) -> None:
        self.packer = packer
        self.session = make_session(packer.api())
        self.path = f"/v1/sessions/{self.session['id']}/evidence.zip"
        self.records: list[dict[str, Any]] = []
        for begin in range(0, count, 1000):
            body = {
                "records": [
                    record_of(self.session["id"], title=f"act {number}")
                    for number in range(begin, min(count, begin + 1000))
                ]
            }
            self.records += packer.api().post("/v1/records/batch", body).json["data"]
        make_finding(packer.api(), self.session["id"])
        seal(packer, self.session)
        packer.log.run()

    def built(self) -> bytes:
        """Return the pack, as it is answered once it was built."""
        self.packer.api().get(self.path, headers=AT_ONCE)
        self.packer.work("session_pack")
        found = self.packer.api().get(self.path, headers=AT_ONCE)
        assert found.status_code == 200, found.json
        assert found.headers["x-service-evidence"] == "current"
        return bytes(found.data)

    def checked(self, folder: Path) -> Answer:
        (folder / "pack.zip").write_bytes(self.built())
        return answer(folder / "pack.zip")


@pytest.fixture
def sealed(packer: Packer) -> Callable[[int], Sealed]:
    return lambda count: Sealed(packer, count)


def test_a_session_s_pack_verifies_whole(
    sealed: Callable[[int], Sealed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "PART", 4)
    monkeypatch.setattr(store, "PART_BYTES", 1500)
    made = sealed(10)
    pending = made.packer.api().get(made.path, headers=AT_ONCE)
    assert (pending.status_code, pending.headers["Preference-Applied"]) == (202, "wait=0")
    assert pending.headers["Location"].endswith(made.path)
    found = made.checked(tmp_path)
    assert found.code == 0, found.text
    assert "VALID        bundles.ndjson: 10 of 10 are here" in found.text
    data = made.built()
    files = files_in(data)
    digests = [each["bundle"]["sha256"] for each in made.records]
    assert files["session-digests.txt"].decode().split() == digests
    lines = files["bundles.ndjson"].splitlines()
    assert [json.loads(each)["record"]["title"] for each in lines] == [
        f"act {number}" for number in range(10)
    ]
    for start in (0, 1499, 5000, len(data) - 7):
        wanted = {"Range": f"bytes={start}-{start + 3000}"}
        part = made.packer.api().get(made.path, headers=wanted)
        assert part.status_code == 206
        assert part.data == data[start : start + 3001]


def test_whoever_has_a_session_s_pack_is_entered_where_reads_are(
    sealed: Callable[[int], Sealed], app: Flask, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sealed(2)
    made.built()
    here = app.extensions[EXTENSION]
    monkeypatch.setattr(here, "settings", replace(here.settings, audit_reads=True))
    api = made.packer.api()
    for _ in range(2):
        assert api.get(made.path, headers={"Range": "bytes=0-9"}).status_code == 206
    found = api.get("/v1/audit?action=session.read").json["data"]
    assert [each["target"]["id"] for each in found] == [made.path.split("/")[3]]


def test_an_open_session_has_no_pack(packer: Packer) -> None:
    session = make_session(packer.api())
    refused(packer.api().get(f"/v1/sessions/{session['id']}/evidence.zip"), 409, "session-open")


def test_a_session_without_records_has_a_pack(
    sealed: Callable[[int], Sealed], tmp_path: Path
) -> None:
    found = sealed(0).checked(tmp_path)
    assert found.code == 0, found.text


COPY = """
INSERT INTO records (tenant_id, id, session_id, agent_id, principal, kind, title, labels_json,
                     occurred_at, bundle_sha256, bundle_size, key_id, signature, created_at)
SELECT tenant_id, :new, session_id, agent_id, principal, kind, title, labels_json,
       occurred_at, {digest}, bundle_size, key_id, signature, created_at
  FROM records WHERE id = :id
"""
CHANGE = "UPDATE {0} SET {1} = set_byte({1}, 40, get_byte({1}, 40) # 1) WHERE {2}"
OF_RECORD = "WHERE record_id = :id"
TAMPERING = {
    "a bundle is gone": (
        [f"DELETE FROM bundles {OF_RECORD}"],
        ("records.ndjson", "INCOMPLETE", "sealed, and not here: 3 of 7 ({id}, {sha256})"),
    ),
    "a bundle was changed": (
        [CHANGE.format("bundles", "bytes", "record_id = :id")],
        ("records.ndjson", "INCOMPLETE", "sealed, and not here: 3 of 7 ({id}, {sha256})"),
    ),
    "a record is gone": (
        [f"DELETE FROM bundles {OF_RECORD}", "DELETE FROM records WHERE id = :id"],
        ("records.ndjson", "INCOMPLETE", "sealed, and not here: 3 of 7 ({sha256})"),
    ),
    "a record has another digest": (
        ["UPDATE records SET bundle_sha256 = sha256(bundle_sha256) WHERE id = :id"],
        ("records.ndjson", "INVALID", "sealed, and not here: 3 of 7 ({sha256})"),
    ),
    "a record was added": (
        [COPY.format(digest="sha256(bundle_sha256)")],
        ("records.ndjson", "INVALID", "in the session, but not sealed with it: (rec_{new}, "),
    ),
    "a record stands there twice": (
        [COPY.format(digest="bundle_sha256")],
        (
            "records.ndjson",
            "INVALID",
            "in the session, but not sealed with it: (rec_{new}, {sha256})",
        ),
    ),
    "a record's signature was changed": (
        ["UPDATE records SET signature = sha512(signature) WHERE id = :id"],
        ("bundles.ndjson", "INVALID", "3 of 7 ({id}): its signature does not hold"),
    ),
    "a record's leaf is gone": (
        ["DELETE FROM log_leaves WHERE leaf_hash = :leaf"],
        ("records.ndjson", "INCOMPLETE", "without a leaf in the log: 3 of 7 ({id}, {sha256})"),
    ),
    "a sealed digest was changed": (
        [CHANGE.format("session_digests", "digests", "session_id = :session")],
        ("session-digests.txt", "INVALID", "these are not the digests whose root was signed"),
    ),
    "a finding is gone": (
        ["DELETE FROM findings WHERE session_id = :session"],
        ("findings.ndjson", "INCOMPLETE", "of those that the statement counts: 1 high"),
    ),
}


@pytest.mark.parametrize("done", TAMPERING)
def test_what_the_owner_of_the_database_did_is_named(
    sealed: Callable[[int], Sealed], tmp_path: Path, admin_engine: Engine, packer: Packer, done: str
) -> None:
    made = sealed(7)
    if done == "a bundle was changed":
        assert made.checked(tmp_path).code == 0
    third, new = made.records[2], NEWER.hex
    values = {
        "id": uuid_of(third["id"]),
        "new": NEWER,
        "session": uuid_of(made.session["id"]),
        "leaf": records.leaf_hash(bytes.fromhex(third["bundle"]["sha256"])),
    }
    statements, (check, verdict, why) = TAMPERING[done]
    for each in statements:
        used = {name: value for name, value in values.items() if f":{name}" in each}
        execute(admin_engine, each, **used)
    if done == "a bundle was changed":
        # The pack is read from it; who asks again gets another.
        cut = packer.api().get(made.path, headers=AT_ONCE)
        assert len(cut.data) < int(cut.headers["Content-Length"])
    found = made.checked(tmp_path)
    named = why.format(id=third["id"], sha256=third["bundle"]["sha256"], new=new)
    assert (found.code, found.verdicts[check]) == (1, verdict), found.text
    assert named in found.text
    assert check in found.last
    execute(admin_engine, "DELETE FROM records WHERE id = :new", new=NEWER)


def test_a_bundle_that_has_expired_is_in_no_pack_and_named_by_its_digest(
    sealed: Callable[[int], Sealed], tmp_path: Path, packer: Packer, admin_engine: Engine
) -> None:
    made = sealed(5)
    assert made.checked(tmp_path).code == 0
    keep_for(packer.api(), 1)
    old = "UPDATE records SET created_at = created_at - interval '2 days' WHERE id = :id"
    first = made.records[0]
    execute(admin_engine, old, id=uuid_of(first["id"]))
    # It is due: the pack that has it cannot be read any more.
    assert packer.api().get(made.path, headers=AT_ONCE).status_code == 202
    found = made.checked(tmp_path)
    assert found.code == 0, found.text
    assert "records.ndjson: 4 of 5 are here; 1 have expired" in found.text
    files = files_in((tmp_path / "pack.zip").read_bytes())
    assert first["id"] not in files["bundles.ndjson"].decode()
    assert json.loads(files["records.ndjson"].splitlines()[0])["status"] == "expired"
    assert packer.api().get(f"/v1/sessions/{made.session['id']}/statement").status_code == 200


def test_a_pack_is_made_anew_when_another_bundle_is_kept_than_the_one_in_it(
    sealed: Callable[[int], Sealed], tmp_path: Path, packer: Packer, admin_engine: Engine
) -> None:
    made, api = sealed(2), packer.api()
    keep_for(api, 1)
    old = "UPDATE records SET created_at = created_at - interval '2 days' WHERE id = :id"
    for each in made.records:
        execute(admin_engine, old, id=uuid_of(each["id"]))
    one, two = ({"reason": "Case 1", "record_id": each["id"]} for each in made.records)
    hold = api.post("/v1/holds", one).json
    made.built()
    assert api.post("/v1/holds", two).status_code == 201
    assert api.delete(f"/v1/holds/{hold['id']}").status_code == 204
    found = made.checked(tmp_path)
    assert "records.ndjson: 1 of 2 are here; 1 have expired" in found.text
    told = files_in((tmp_path / "pack.zip").read_bytes())["records.ndjson"].splitlines()
    assert [json.loads(each)["status"] for each in told] == ["expired", "present"]


def test_builds_take_turns_so_that_none_waits_with_a_connection_in_its_hand(
    sealed: Callable[[int], Sealed], packer: Packer, admin_engine: Engine, settings: Settings
) -> None:
    both = [sealed(1), sealed(1)]
    for each in both:
        packer.api().get(each.path, headers=AT_ONCE)
    first, second = packer.jobs("session_pack")
    three = replace(settings, database_connections=6, worker_processes=1)
    with (
        opened_runtime(three) as runtime,
        ThreadPoolExecutor(1) as pool,
        admin_engine.connect() as other,
    ):
        other.execute(text("LOCK TABLE evidence_pack_parts IN EXCLUSIVE MODE"))
        building = pool.submit(work_on, runtime, packer.tenant.id, first.id)
        until(lambda: waiting(admin_engine, "INSERT INTO evidence_pack_parts"))
        try:
            work_on(runtime, packer.tenant.id, second.id)
        finally:
            other.rollback()
        building.result()
    told = json.loads(packer.jobs("session_pack")[1].progress or "")
    assert told["phase"] == "waiting for others"
    execute(admin_engine, "UPDATE jobs SET run_at = clock_timestamp() WHERE id = :i", i=second.id)
    for each in both:
        each.built()


def test_only_who_may_see_the_session_gets_its_pack_and_the_chain_names_the_taker(
    sealed: Callable[[int], Sealed], packer: Packer, mint: Mint
) -> None:
    made = sealed(2)
    inside = {"agent_id": made.session["agent_id"], "principal": made.session["principal"]}
    assert (
        packer.api(mint("read", inside | {"principal": "bob@example.com"}))
        .get(made.path)
        .status_code
        == 404
    )
    assert packer.api(mint("read", inside)).get(made.path, headers=AT_ONCE).status_code == 202
    made.built()
    made.built()
    entries = packer.api().get("/v1/audit?limit=200").json["data"]
    exports = [each for each in entries if each["action"] == "evidence.export"]
    assert [each["target"] for each in exports] == [{"type": "session", "id": made.session["id"]}]


@pytest.mark.toolbox
def test_a_session_of_ten_thousand_records_and_the_one_that_was_left_out(
    sealed: Callable[[int], Sealed], tmp_path: Path, admin_engine: Engine
) -> None:
    made = sealed(10_000)
    found = made.checked(tmp_path)
    assert found.code == 0, found.text
    assert "bundles.ndjson: 10000 of 10000 are here, each signed" in found.text
    gone = made.records[6_789]
    execute(admin_engine, f"DELETE FROM bundles {OF_RECORD}", id=uuid_of(gone["id"]))
    execute(admin_engine, "DELETE FROM records WHERE id = :id", id=uuid_of(gone["id"]))
    found = made.checked(tmp_path)
    assert found.code == 1
    assert f"sealed, and not here: 6790 of 10000 ({gone['bundle']['sha256']})" in found.text
