"""The job that builds a pack, as a worker runs it: once, again, killed, too late, for nothing."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import hypothesis.strategies as hypothesis
import pytest
from hypothesis import given
from sqlalchemy import Engine

from app import clock, ids
from app.core import signing_keys
from app.core.log import publication
from app.core.packs import building, pack_evidence, store
from app.core.signing_keys import Purpose
from app.database import Database
from app.dev.tsa import KeyType, TimestampAuthority
from app.evidence import pack
from app.ledger.policy import Policy
from app.lib.crypto.timestamps import read_certificates
from app.models import Job
from app.settings import Settings
from jobs.actors import prune_history
from tests.support.callers.making import refused
from tests.support.evidence.anchoring import put_line, put_stamp
from tests.support.evidence.packing import (
    Packer,
    execute,
    files_in,
    packer,
    record_id,
    set_up_as,
    stored,
)
from tests.support.evidence.witnesses import Witness
from tests.support.workers.expiring import Expirer

__all__ = ["packer"]


def test_a_pack_holds_the_record_s_bundle_and_all_that_proves_it(
    packer: Packer, admin_engine: Engine
) -> None:
    record = packer.record()
    files = files_in(packer.built(record))
    assert sha256(files["bundle.json"]).hexdigest() == record["bundle"]["sha256"]
    assert files["verify.py"] == pack.verifier_source()
    assert json.loads(files["manifest.json"])["record_id"] == record["id"]
    assert stored(admin_engine, record) == [(True, False, 1)]


FLIP_BUNDLE = """
UPDATE bundles SET bytes = set_byte(bytes, 40, get_byte(bytes, 40) # 1) WHERE record_id = :id
"""


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
        log_key = publication.verifier_key(session, last.generation)
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


def due_now(owner: Engine) -> None:
    execute(owner, "UPDATE jobs SET run_at = clock_timestamp() WHERE kind = 'evidence_pack'")


def lease_over(owner: Engine) -> None:
    execute(owner, "UPDATE jobs SET locked_until = created_at WHERE kind = 'evidence_pack'")


def progress(job: Job) -> Any:
    return json.loads(job.progress or "null")


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 1024)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> TimestampAuthority:
    return TimestampAuthority(tmp_path_factory.mktemp("tsa"))


@pytest.fixture
def trusting(packer: Packer, settings: Settings, authority: TimestampAuthority) -> Iterator[Packer]:
    """Return a packer of a service that trusts the authority."""
    roots = read_certificates(authority.ca_file.read_bytes())
    with set_up_as(packer, settings, tsa_ca_file=roots) as made:
        yield made


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


def test_a_pack_is_made_anew_once_there_is_better_evidence(
    trusting: Packer, admin_engine: Engine, authority: TimestampAuthority
) -> None:
    packer = trusting
    record = packer.record()
    before = packer.built(record)
    packer.record()
    response = put_stamp(admin_engine, authority)
    answer = packer.ask(record)
    assert (answer.data, answer.headers["x-service-evidence"]) == (before, "outdated")
    assert len(packer.work()) == 2
    answer = packer.ask(record)
    assert answer.headers["x-service-evidence"] == "current"
    files = files_in(answer.data)
    assert files["checkpoint.tsr"] == response
    assert files["checkpoint"] != files_in(before)["checkpoint"]
    assert stored(admin_engine, record) == [(True, True, 1), (True, False, 1)]
    packer.record()
    put_stamp(admin_engine, authority)
    assert packer.ask(record).data == answer.data
    assert len(packer.jobs()) == 2


def test_a_witnessed_pack_is_made_anew_once_its_record_is_stamped_as_well(
    packer: Packer, settings: Settings, admin_engine: Engine, authority: TimestampAuthority
) -> None:
    roots = read_certificates(authority.ca_file.read_bytes())
    witness = Witness("one.test")
    policy = Policy.parse(f"witness w {witness.vkey}\nquorum w\n".encode())
    with set_up_as(packer, settings, tsa_ca_file=roots, witness_policy=policy) as both:
        record = both.record()
        put_line(admin_engine, witness)
        before = both.built(record)
        assert "checkpoint.tsr" not in files_in(before)
        both.record()
        put_stamp(admin_engine, authority)
        assert both.ask(record).headers["x-service-evidence"] == "current", "of another checkpoint"
        put_line(admin_engine, witness)
        answer = both.ask(record)
        assert (answer.data, answer.headers["x-service-evidence"]) == (before, "outdated")
        both.work()
        files = files_in(both.ask(record).data)
        assert "checkpoint.tsr" in files
        assert len(json.loads(files["anchor.json"])["cosignatures"]) == 1
        both.record()
        put_stamp(admin_engine, authority)
        put_line(admin_engine, witness)
        assert files_in(both.ask(record).data) == files, "and stays"
        delete = "DELETE FROM evidence_packs WHERE record_id = :id"
        execute(admin_engine, delete, id=record_id(record))
        assert files_in(both.built(record)) == files


def test_a_pack_is_made_anew_when_other_authorities_are_trusted(
    trusting: Packer,
    admin_engine: Engine,
    settings: Settings,
    authority: TimestampAuthority,
    tmp_path: Path,
) -> None:
    record = trusting.record()
    put_stamp(admin_engine, authority)
    assert "checkpoint.tsr" in files_in(trusting.built(record))
    another = read_certificates(TimestampAuthority(tmp_path, KeyType.P256).ca_file.read_bytes())
    with set_up_as(trusting, settings, tsa_ca_file=another) as packer:
        assert packer.ask(record).headers["x-service-evidence"] == "outdated"
        packer.work()
        answer = packer.ask(record)
    assert answer.headers["x-service-evidence"] == "current"
    assert "checkpoint.tsr" not in files_in(answer.data)


def test_a_pack_is_made_anew_when_other_witnesses_count(packer: Packer, settings: Settings) -> None:
    record = packer.record()
    packer.built(record)
    one, two = Witness("one.test"), Witness("two.test")
    lines = [f"witness {each.name} {each.vkey}" for each in (one, two)]

    def written(group: str) -> str:
        return "\n".join([*lines, f"group g {group} {one.name} {two.name}", "quorum g", ""])

    for group, current in (("any", False), ("any", True), ("all", False)):
        text = written(group)
        with set_up_as(packer, settings, witness_policy=Policy.parse(text.encode())) as other:
            said = other.ask(record).headers["x-service-evidence"]
            assert said == ("current" if current else "outdated")
            other.work()
    elsewhere = written("all").replace(str(one.vkey), f"{one.vkey} https://one.test")
    with set_up_as(packer, settings, witness_policy=Policy.parse(elsewhere.encode())) as other:
        assert other.ask(record).headers["x-service-evidence"] == "current", "the same, elsewhere"


def test_a_pack_is_made_anew_after_its_key_was_rotated(
    packer: Packer, database: Database, settings: Settings
) -> None:
    record = packer.record()
    before = files_in(packer.built(record))
    with database.across_tenants() as session:
        signing_keys.replace(session, settings.master_keys, Purpose.BUNDLE)
    assert packer.ask(record).headers["x-service-evidence"] == "outdated"
    packer.work()
    after = files_in(packer.ask(record).data)
    changed = {name for name, data in after.items() if data != before[name]}
    assert {"pack-key.pem", "SHA256SUMS.sig"} <= changed
    assert not changed & {"bundle.json", "bundle.sig", "public-key.pem", "anchor.json"}


def test_a_pack_is_made_anew_by_another_release(
    packer: Packer, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    packer.built(record)
    monkeypatch.setattr(pack_evidence, "VERSION", "9.9.9")
    assert packer.ask(record).headers["x-service-evidence"] == "outdated"
    packer.work()
    manifest = json.loads(files_in(packer.ask(record).data)["manifest.json"])
    assert manifest["release"] == "9.9.9"


class Killed(BaseException):
    """Stands for the end of a process."""


def at_part(monkeypatch: pytest.MonkeyPatch, number: int, happens: Callable[[], None]) -> None:
    """Let something happen before part `number` of each build is stored."""
    add_part = store.add_part

    def adding(*args: Any) -> None:
        if args[3] == number:
            happens()
        add_part(*args)

    monkeypatch.setattr(store, "add_part", adding)


def die() -> None:
    raise Killed


def test_a_build_that_was_killed_is_begun_anew_and_leaves_nothing(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    record = packer.record()
    packer.ask(record)
    with monkeypatch.context() as patched:
        at_part(patched, 3, die)
        with pytest.raises(Killed):
            packer.work()
    assert stored(admin_engine, record) == [(False, False, 3)]
    (job,) = packer.work()
    assert (job.status, progress(job)["bytes"]) == ("running", 3 * 1024), "it is leased still"
    lease_over(admin_engine)
    (job,) = packer.work()
    assert job.status == "succeeded"
    ((built, superseded, parts),) = stored(admin_engine, record)
    assert (built, superseded) == (True, False)
    data = packer.ask(record).data
    assert parts == -(-len(data) // 1024)
    assert progress(job) == {
        "record_id": record["id"],
        "phase": "built",
        "bytes": len(data),
        "total": len(data),
    }


def test_a_worker_that_was_taken_for_dead_stores_nothing_more(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    record = packer.record()
    packer.ask(record)
    others: list[Job] = []

    def another_comes() -> None:
        if not others:
            others.append(packer.jobs()[0])
            lease_over(admin_engine)
            others.extend(packer.work())

    # Between two parts, so that the first one holds no row while the other works.
    held = building._Build._held  # where a transaction of a build begins

    def holding(build: Any, size: int, total: int) -> Any:
        if size > 1024:
            another_comes()
        return held(build, size, total)

    monkeypatch.setattr(building._Build, "_held", holding)
    (job,) = packer.work()
    assert others[-1].status == job.status == "succeeded"
    assert [each[:2] for each in stored(admin_engine, record)] == [(True, False)]
    assert files_in(packer.ask(record).data)


@pytest.mark.parametrize("at", ["a part", "the end"])
@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "due"])
def test_a_build_in_flight_when_the_bundle_expires_stores_nothing(
    packer: Packer,
    database: Database,
    admin_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    deleted: bool,
) -> None:
    small_parts(monkeypatch)
    record = packer.record()
    packer.ask(record)
    packer.api().patch("/v1/tenant/settings", {"bundle_retention_days": 1})
    expirer = Expirer(database, admin_engine, packer.tenant)

    def expire() -> None:
        expirer.age(record, days=2)
        if deleted:
            assert expirer.run() == {"expired": 1}

    held, record_end = building._Build._held, building._Build.record

    def holding(build: Any, size: int, total: int) -> Any:
        if size == 3 * 1024:
            expire()
        return held(build, size, total)

    def ending(build: Any, session: Any, said: Any) -> Any:
        expire()
        return record_end(build, session, said)

    if at == "a part":
        monkeypatch.setattr(building._Build, "_held", holding)
    else:
        monkeypatch.setattr(building._Build, "record", ending)
    (job,) = packer.work()
    assert (job.status, progress(job)["phase"]) == ("succeeded", "the bundle has expired")
    assert [each for each in stored(admin_engine, record) if each[0]] == []
    assert packer.ask(record).status_code == 410
    if deleted:
        assert stored(admin_engine, record) == []
    else:
        assert expirer.run() == {"expired": 1}
        assert stored(admin_engine, record) == []
    assert len(packer.jobs()) == 1


def test_expiry_takes_the_pack_with_the_bundle(
    packer: Packer, database: Database, admin_engine: Engine
) -> None:
    old, young = packer.record(), packer.record()
    packer.built(old)
    kept = packer.built(young)
    packer.api().patch("/v1/tenant/settings", {"bundle_retention_days": 1})
    expirer = Expirer(database, admin_engine, packer.tenant)
    expirer.age(old, days=2)
    for _ in range(2):
        gone = packer.ask(old)
        assert (gone.status_code, gone.json["sha256"]) == (410, old["bundle"]["sha256"])
        expirer.run()
    assert stored(admin_engine, old) == []
    assert packer.ask(young).data == kept


def test_a_build_that_fails_says_so_and_is_tried_again(
    packer: Packer, admin_engine: Engine
) -> None:
    record = packer.record()
    execute(admin_engine, FLIP_BUNDLE, id=record_id(record))
    packer.ask(record)
    (job,) = packer.work()
    assert (job.status, job.error) == (
        "retrying",
        "The job failed inside the service (CannotOpen).",
    )
    answer = packer.ask(record)
    assert answer.status_code == 202
    assert answer.json["job"]["error"] == job.error
    assert 3 <= int(answer.headers["Retry-After"]) <= 5
    for _ in range(5):
        due_now(admin_engine)
        packer.work()
    dead = refused(packer.ask(record), 503, "evidence-pack-failed")
    assert dead["job_id"] == ids.text("job", job.id)
    execute(admin_engine, FLIP_BUNDLE, id=record_id(record))
    assert packer.api().post(f"/v1/jobs/{dead['job_id']}/retry").status_code == 200
    assert packer.ask(record).status_code == 202
    assert files_in(packer.built(record))
    assert len(packer.jobs()) == 1


def test_an_hour_after_a_job_gave_up_another_is_begun(packer: Packer, admin_engine: Engine) -> None:
    record = packer.record()
    packer.ask(record)
    execute(
        admin_engine,
        "UPDATE jobs SET status = 'dead', finished_at = clock_timestamp() WHERE id = :id",
        id=packer.jobs()[0].id,
    )
    dead = refused(packer.ask(record), 503, "evidence-pack-failed")["job_id"]
    execute(
        admin_engine,
        "UPDATE jobs SET finished_at = finished_at - interval '61 min' WHERE id = :id",
        id=packer.jobs()[0].id,
    )
    assert packer.ask(record).status_code == 202
    refused(packer.api().post(f"/v1/jobs/{dead}/retry"), 409, "job-state")
    assert files_in(packer.built(record))


def test_a_large_build_without_room_comes_back(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "LARGE", 100)
    monkeypatch.setattr(building, "_room", BoundedSemaphore(1))
    record = packer.record()
    packer.ask(record)
    with building._room_for(101):  # another build
        (job,) = packer.work()
        assert (job.status, progress(job)["phase"]) == ("running", "waiting for room")
        assert stored(admin_engine, record) == []
    due_now(admin_engine)
    assert packer.work()[0].status == "succeeded"


def test_what_dead_builds_and_replaced_packs_leave_is_swept_up(
    trusting: Packer,
    database: Database,
    admin_engine: Engine,
    authority: TimestampAuthority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packer = trusting
    monkeypatch.setattr(store, "MOST_AT_ONCE", 1)
    left, replaced = packer.record(), packer.record()
    packer.built(replaced)
    put_stamp(admin_engine, authority)
    packer.ask(left)
    packer.ask(replaced)
    with monkeypatch.context() as patched:
        at_part(patched, 0, die)
        with pytest.raises(Killed):
            packer.work()
    lease_over(admin_engine)
    packer.work()
    execute(
        admin_engine,
        """
        UPDATE evidence_packs SET built_at = NULL, sha256 = NULL,
               began_at = began_at - make_interval(hours => 23)
         WHERE record_id = :id
        """,
        id=record_id(left),
    )

    def swept() -> int:
        return prune_history._forget_packs(database)  # the daily tick's part

    assert swept() == 0
    execute(
        admin_engine,
        """
        UPDATE evidence_packs SET began_at = began_at - interval '2 hours',
               superseded_at = superseded_at - interval '2 hours'
        """,
    )
    assert swept() >= 2
    assert stored(admin_engine, left) == []
    assert [each[:2] for each in stored(admin_engine, replaced)] == [(True, False)]


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
