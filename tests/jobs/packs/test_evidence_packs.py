"""Packs: what is in them, the agent's name, and their memory."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import hypothesis.strategies as hypothesis
import pytest
from hypothesis import given
from sqlalchemy import Engine

from app import clock
from app.core import signing_keys
from app.core.blobs.store import cut
from app.core.log import publication
from app.core.packs import building, subjects
from app.core.signing_keys import Purpose
from app.database import Database
from app.evidence import pack
from app.settings import Settings
from tests.support.callers.api import FreshTenant
from tests.support.callers.making import make_agent, make_record, make_session, make_share_link
from tests.support.database.databases import execute
from tests.support.evidence.packing import Packer, due_now, files_in, progress, record_id, stored


def test_a_pack_has_all_that_proves_its_record_and_one_file_verifies_it_without_the_service(
    packer: Packer, database: Database, settings: Settings, admin_engine: Engine, tmp_path: Path
) -> None:
    record = packer.record()
    made = packer.built(record)
    (tmp_path / "pack.zip").write_bytes(made)
    (tmp_path / "verify.py").write_bytes(pack.verifier_source())
    with database.across_tenants() as session:
        key = signing_keys.current(session, settings.master_keys, Purpose.BUNDLE).public
        last = publication.current(session)
        assert last is not None
        log_key = last.generation.verifier_key
    (tmp_path / "key.pem").write_bytes(key.pem)
    (tmp_path / "policy").write_text(f"log {log_key}\nquorum none\n")
    options = ["--strict", "--key", "key.pem", "--policy", "policy"]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "verify.py", "pack.zip", *options],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "VALID"), done.stdout
    assert "was called" not in done.stdout, "nobody has to be believed for the agent's name"
    files = files_in(made)
    assert sha256(files["bundle.json"]).hexdigest() == record["bundle"]["sha256"]
    assert json.loads(files["manifest.json"])["record_id"] == record["id"]
    assert stored(admin_engine, record) == [(False, 1)]
    packer.record()
    execute(admin_engine, "DELETE FROM evidence_packs WHERE record_id = :id", id=record_id(record))
    assert packer.built(record) == made, "the same bytes, built again"


def test_a_build_waits_for_the_log(packer: Packer, admin_engine: Engine) -> None:
    record = packer.record(published=False)
    packer.ask(record)
    waits = []
    for _ in range(4):
        (job,) = packer.work()
        assert (job.status, progress(job)["phase"]) == ("running", "waiting for the log")
        waits.append(job.run_at - clock.now())
        due_now(admin_engine)
    assert all(wait < timedelta(seconds=5) for wait in waits)
    packer.log.run()
    (job,) = packer.work()
    assert job.status == "succeeded"
    assert packer.ask(record).status_code == 200


def test_a_large_build_without_room_comes_back(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subjects, "LARGE", 100)
    monkeypatch.setattr(subjects, "_large", BoundedSemaphore(1))
    record = packer.record()
    packer.ask(record)
    with building.bulkhead(subjects._large):  # another build
        (job,) = packer.work()
        assert (job.status, progress(job)["phase"]) == ("running", "waiting for others")
        assert stored(admin_engine, record) == []
    due_now(admin_engine)
    assert packer.work()[0].status == "succeeded"


@given(
    lengths=hypothesis.lists(hypothesis.integers(0, 40), max_size=12),
    size=hypothesis.integers(1, 50),
)
def test_parts_are_of_one_size_and_lose_nothing(lengths: list[int], size: int) -> None:
    chunks = [bytes([place]) * length for place, length in enumerate(lengths)]
    parts = list(cut(chunks, size))
    assert b"".join(parts) == b"".join(chunks)
    assert all(len(part) == size for part in parts[:-1])
    assert all(parts)


EXPORTS = ("prov.json", "otlp-traces.json", "otlp-logs.json")


def names_in(packer: Packer, record: dict[str, str]) -> set[str]:
    """Return what each export of a record calls its agent."""
    path, found = f"/v1/records/{record['id']}", set()
    made = {name: packer.api().get(f"{path}/{name}").json for name in EXPORTS}
    found.add(made["prov.json"]["agent"][f"agent:{record['agent_id']}"]["prov:label"])
    (spans,) = made["otlp-traces.json"]["resourceSpans"][0]["scopeSpans"]
    (logs,) = made["otlp-logs.json"]["resourceLogs"][0]["scopeLogs"]
    for told in (spans["spans"][0], logs["logRecords"][0]):
        attributes = {each["key"]: each["value"] for each in told["attributes"]}
        found.add(attributes["gen_ai.agent.name"]["stringValue"])
    return found


def test_a_record_keeps_the_name_that_its_agent_had(packer: Packer, admin_engine: Engine) -> None:
    api = packer.api()
    agent = make_agent(api, name="Loans <b>2</b>")
    session = make_session(api, agent["id"])
    records = [make_record(api, session["id"])]
    packer.log.run()
    tags = [api.get(f"/v1/records/{records[0]['id']}/{name}").headers["ETag"] for name in EXPORTS]
    before = packer.built(records[0])
    for name in ("Innocent", "Clerk"):
        assert api.patch(f"/v1/agents/{agent['id']}", {"name": name}).status_code == 200
        records.append(make_record(api, session["id"]))
    packer.log.run()
    for record, name in zip(records, ("Loans <b>2</b>", "Innocent", "Clerk"), strict=True):
        assert names_in(packer, record) == {name}
        files = files_in(packer.built(record))
        for file in ("anchor.json", "manifest.json"):
            told = json.loads(files[file])["agent"]
            assert told == {"id": agent["id"], "name": name}, file
        assert f"Agent:       {name} ({agent['id']})" in files["README.txt"].decode()
        prov = json.loads(files["prov.json"])
        assert prov["agent"][f"agent:{agent['id']}"]["prov:label"] == name
    link = make_share_link(api, records[0]["id"])
    page = packer.api(None).get("/s/" + link["url"].rpartition("/")[2]).text
    assert "Loans &lt;b&gt;" in page
    assert "Clerk" not in page
    # Nothing of the first record changed, so nothing of it was made anew.
    again = packer.ask(records[0])
    assert (again.data, again.headers["x-service-evidence"]) == (before, "current")
    assert stored(admin_engine, records[0]) == [(False, 1)]
    assert [
        api.get(f"/v1/records/{records[0]['id']}/{name}").headers["ETag"] for name in EXPORTS
    ] == tags


KIB = 1024


def steps(count: int) -> list[dict[str, Any]]:
    """Return steps that PROV tells with twice as many bytes: quotes within JSON within JSON."""
    moment = "2026-01-31T12:00:00Z"
    return [
        {
            "name": f"s{number}",
            "kind": "k",
            "started_at": moment,
            "ended_at": moment,
            "status": "ok",
            "outputs": {f"out{number}": ['"' * 3_800]},
        }
        for number in range(count)
    ]


def test_neither_a_build_nor_a_download_holds_a_pack(
    packer: Packer, environ: dict[str, str], tenant: FreshTenant
) -> None:
    record = packer.record(steps=steps(1_000))
    assert record["bundle"]["size"] > 6 * 1024 * 1024
    pack = len(packer.built(record)) / KIB
    assert pack > 2 * record["bundle"]["size"] / KIB
    done = subprocess.run(
        [sys.executable, "-m", "tests.jobs.packs.pack_memory", *who(tenant, record)],
        env={**os.environ, **environ, "LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
    )
    downloaded, read, built = map(int, done.stdout.split()[-3:])
    assert downloaded < pack * 3 / 4
    assert read > record["bundle"]["size"] / KIB, "what is measured moves at all"
    assert built < pack * 3 / 4


def who(tenant: FreshTenant, record: dict[str, Any]) -> tuple[str, str, str]:
    """Return what the process is told."""
    return str(tenant.id), record["id"], tenant.root_key
