"""Builds that are killed, too late, failing, or for an expired bundle."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine

from app import ids
from app.core.packs import store
from app.database import Database
from app.evidence import pack
from app.models import Job
from dev.tsa import TimestampAuthority
from jobs.actors import prune_history
from tests.support.callers.making import refused
from tests.support.database.databases import execute
from tests.support.evidence.anchoring import put_stamp
from tests.support.evidence.packing import Packer, due_now, files_in, progress, record_id, stored
from tests.support.workers.expiring import Expirer

FLIP_BUNDLE = """
UPDATE bundles SET bytes = set_byte(bytes, 40, get_byte(bytes, 40) # 1) WHERE record_id = :id
"""


def lease_over(owner: Engine) -> None:
    execute(owner, "UPDATE jobs SET locked_until = created_at WHERE kind = 'evidence_pack'")


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PART_BYTES", 1024)


class Killed(BaseException):
    """Stands for the end of a process."""


def at_part(monkeypatch: pytest.MonkeyPatch, number: int, happens: Callable[[], None]) -> None:
    """Let something happen before part `number` of each build is stored."""
    add_part = store.add_part

    def adding(*args: Any) -> None:
        if args[3].starts == number * store.PART_BYTES:
            happens()
        add_part(*args)

    monkeypatch.setattr(store, "add_part", adding)


def die() -> None:
    raise Killed


def test_a_build_that_was_killed_leaves_nothing_and_is_begun_anew(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_parts(monkeypatch)
    record = packer.record()
    packer.ask(record)
    with monkeypatch.context() as patched:
        at_part(patched, 3, die)
        with pytest.raises(Killed):
            packer.work()
    assert stored(admin_engine, record) == []
    (job,) = packer.work()
    assert (job.status, progress(job)["bytes"]) == ("running", 0), "it is leased still"
    lease_over(admin_engine)
    (job,) = packer.work()
    assert job.status == "succeeded"
    ((superseded, parts),) = stored(admin_engine, record)
    assert not superseded
    data = packer.ask(record).data
    assert parts == -(-len(data) // 1024)
    assert progress(job) == {
        "record_id": record["id"],
        "phase": "built",
        "bytes": len(data),
        "total": len(data),
    }


def test_a_worker_that_was_taken_for_dead_stores_nothing(
    packer: Packer, admin_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = packer.record()
    packer.ask(record)
    others: list[Job] = []

    def another_comes() -> None:
        if not others:
            others.append(packer.jobs()[0])
            lease_over(admin_engine)
            others.extend(packer.work())

    at_part(monkeypatch, 0, another_comes)
    (job,) = packer.work()
    assert others[-1].status == job.status == "succeeded"
    assert [each[0] for each in stored(admin_engine, record)] == [False]
    assert files_in(packer.ask(record).data)


@pytest.mark.parametrize("at", ["before it is stored", "while it is stored"])
def test_a_build_in_flight_when_the_bundle_expires_stores_nothing(
    packer: Packer,
    database: Database,
    admin_engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    record = packer.record()
    packer.ask(record)
    packer.api().patch("/v1/tenant/settings", {"bundle_retention_days": 1})
    expirer = Expirer(database, admin_engine, packer.tenant)
    write = pack.write

    def writing(evidence: Any) -> Any:
        expirer.age(record, days=2)
        assert expirer.run() == {"expired": 1}
        return write(evidence)

    if at == "before it is stored":
        monkeypatch.setattr(pack, "write", writing)
    else:
        at_part(monkeypatch, 0, lambda: expirer.age(record, days=2))
    (job,) = packer.work()
    assert (job.status, progress(job)["phase"]) == ("succeeded", "the bundle has expired")
    assert stored(admin_engine, record) == []
    assert packer.ask(record).status_code == 410
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


def test_a_replaced_pack_is_deleted_an_hour_later(
    trusting: Packer,
    database: Database,
    admin_engine: Engine,
    authority: TimestampAuthority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packer = trusting
    monkeypatch.setattr(store, "MOST_AT_ONCE", 1)
    replaced = packer.record()
    packer.built(replaced)
    put_stamp(admin_engine, authority)
    packer.ask(replaced)
    packer.work()

    def swept() -> int:
        # The daily tick's part.
        return prune_history._in_batches(database, store.MOST_AT_ONCE, store.forget_replaced)

    assert swept() == 0
    assert [each[0] for each in stored(admin_engine, replaced)] == [True, False]
    execute(
        admin_engine, "UPDATE evidence_packs SET superseded_at = superseded_at - interval '2 hours'"
    )
    assert swept() >= 1
    assert [each[0] for each in stored(admin_engine, replaced)] == [False]
