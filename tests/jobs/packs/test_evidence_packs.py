"""The job that builds a pack: what a pack holds, when it waits, its parts."""

import json
import subprocess
import sys
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from threading import BoundedSemaphore

import hypothesis.strategies as hypothesis
import pytest
from hypothesis import given
from sqlalchemy import Engine

from app import clock
from app.core import signing_keys
from app.core.log import publication
from app.core.packs import building
from app.core.signing_keys import Purpose
from app.database import Database
from app.evidence import pack
from app.settings import Settings
from tests.support.evidence.packing import (
    Packer,
    due_now,
    execute,
    files_in,
    progress,
    record_id,
    stored,
)


def test_a_pack_holds_the_record_s_bundle_and_all_that_proves_it(
    packer: Packer, admin_engine: Engine
) -> None:
    record = packer.record()
    files = files_in(packer.built(record))
    assert sha256(files["bundle.json"]).hexdigest() == record["bundle"]["sha256"]
    assert files["verify.py"] == pack.verifier_source()
    assert json.loads(files["manifest.json"])["record_id"] == record["id"]
    assert stored(admin_engine, record) == [(True, False, 1)]


def test_a_pack_is_verified_by_one_file_without_the_service(
    packer: Packer, database: Database, settings: Settings, tmp_path: Path
) -> None:
    record = packer.record()
    (tmp_path / "pack.zip").write_bytes(packer.built(record))
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


def test_two_builds_are_the_same_bytes(packer: Packer, admin_engine: Engine) -> None:
    record = packer.record()
    first = packer.built(record)
    packer.record()
    execute(admin_engine, "DELETE FROM evidence_packs WHERE record_id = :id", id=record_id(record))
    assert packer.built(record) == first


def test_a_pack_stays_however_the_log_grows(packer: Packer) -> None:
    record = packer.record()
    first = packer.ask(record), packer.built(record)
    packer.record()
    answer = packer.ask(record)
    assert (answer.data, answer.headers["x-service-evidence"]) == (first[1], "current")
    assert len(packer.jobs()) == 1


def test_a_large_build_without_room_comes_back(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "LARGE", 100)
    monkeypatch.setattr(building, "_bulkhead", BoundedSemaphore(1))
    record = packer.record()
    packer.ask(record)
    with building._bulkhead_for(101):  # another build
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
    parts = list(building.in_parts(chunks, size))
    assert b"".join(parts) == b"".join(chunks)
    assert all(len(part) == size for part in parts[:-1])
    assert all(parts)
