"""What is found is told: once for each break, to the tenant and the operator, until it is healed.

By a request, by a job, and daily for all.
"""

import json
from threading import Event, Thread

import pytest
import structlog

from app.core import audit, jobs, tenants
from app.core.callers import SYSTEM
from app.core.jobs import Errand, Failed
from app.core.verification import breaks, deadline, recent
from app.core.verification import jobs as verification
from app.core.verification.verifier import Asked
from app.errors import LogDamaged
from app.ledger.hash_chain import Head
from app.models import Job
from jobs.run_job import work_on
from jobs.runtime import Runtime
from tests.chains import Place


def done(place: Place, job: Job) -> Job:
    """Run a job as a worker does; return it as it ended."""
    while True:
        with place.world.database.across_tenants() as session:
            claimed = jobs.claim(session, job.tenant_id, job.id)
            if claimed is None:
                return jobs.get(session, job.tenant_id, job.id)
            step = verification.step(place.verifier, session, job.tenant_id, claimed)
        said = step.talk() if isinstance(step, Errand) else None
        with place.world.database.across_tenants() as session:
            ended = step.record(session, said) if isinstance(step, Errand) else step
            if isinstance(ended, Failed):
                jobs.fail(session, claimed, ended.error, for_good=ended.for_good)
            else:
                jobs.advance(session, claimed, ended)


def daily_run(place: Place) -> dict[str, object]:
    with place.world.database.across_tenants() as session:
        job = verification.look(session)
    ended = done(place, job)
    assert ended.status == "succeeded", ended.error
    return dict(json.loads(ended.progress or "{}"))


def standing(place: Place) -> str | None:
    with place.world.database.across_tenants() as session:
        return breaks.standing(session)


def test_a_break_is_told_once_and_stands_until_the_chain_verifies_again(place: Place) -> None:
    body = place.owner.scalar(
        "SELECT body FROM audit_entries WHERE tenant_id = :tenant AND seq = 3"
    )
    change = "UPDATE audit_entries SET body = :body WHERE tenant_id = :tenant AND seq = 3"
    place.owner(change, body=body + b" ")
    assert [place.broken() for _ in range(3)] == [(3, "bad_hash")] * 3
    (told,) = map(json.loads, place.events())
    assert (told["data"]["seq"], told["data"]["reason"]) == (3, "bad_hash")
    assert standing(place) == "1 broken"
    place.owner(change, body=body)
    assert place.verify(since_anchor=True)
    assert standing(place) == "1 broken"
    assert place.verify()
    assert standing(place) is None
    place.owner(change, body=body + b" ")
    place.broken()
    assert len(place.events()) == 2


def test_another_break_is_told_too(place: Place) -> None:
    place.owner.rewrite(9, action="other")
    place.broken()
    place.owner.rewrite(4, action="other")
    assert place.broken() == (5, "bad_link")
    assert len(place.events()) == 2


def test_a_forgotten_break_is_told_again(place: Place) -> None:
    place.owner.cut(8)
    place.broken()
    place.owner("DELETE FROM audit_breaks")
    place.broken()
    assert len(place.events()) == 2


def test_a_break_is_answered_even_if_it_cannot_be_kept(place: Place) -> None:
    place.owner.cut(8)
    place.owner("ALTER TABLE audit_breaks RENAME TO gone")
    try:
        with structlog.testing.capture_logs() as lines:
            assert place.broken() == (9, "missing")
    finally:
        place.owner("ALTER TABLE gone RENAME TO audit_breaks")
    assert [line["event"] for line in lines] == ["audit_chain_broken", "audit_break_not_kept"]


def test_a_head_that_a_caller_invented_is_refused_and_told_to_nobody(place: Place) -> None:
    assert place.broken(kept=Head(4, "0" * 64)) == (4, "other_head")
    assert place.events() == []
    assert standing(place) is None


def test_a_log_that_does_not_hold_is_the_operator_s_trouble_until_it_holds(place: Place) -> None:
    place.owner("UPDATE log_tiles SET data = set_byte(data, 9, 0) WHERE level = -1")
    with pytest.raises(LogDamaged), structlog.testing.capture_logs() as lines:
        place.verify()
    assert [line["event"] for line in lines] == ["log_not_verified"]
    assert "tile/entries/000" in (standing(place) or "")
    assert place.events() == []
    assert daily_run(place)["log"] == "log-damaged"


# Jobs


def test_what_takes_longer_than_somebody_waits_is_left_to_a_job(place: Place) -> None:
    with pytest.raises(deadline.TakesLonger):
        place.verifier.verify(place.tenant_id, Asked(), seconds=0)
    with place.world.database.transaction(place.tenant_id) as session:
        job = verification.enqueue(session, place.tenant_id, Asked(full=True))
        assert verification.enqueue(session, place.tenant_id, Asked(full=True)).id == job.id
    ended = done(place, job)
    assert ended.status == "succeeded"
    assert json.loads(ended.progress or "") == json.loads(json.dumps(place.verify()))


def test_a_job_that_finds_a_break_ends_dead_and_names_the_place(place: Place) -> None:
    place.owner.cut(8)
    with place.world.database.transaction(place.tenant_id) as session:
        job = verification.enqueue(session, place.tenant_id, Asked(kept=Head(12, "0" * 64)))
    ended = done(place, job)
    assert ended.status == "dead"
    assert (ended.error or "").startswith(
        "audit-chain-broken: The audit chain is broken at entry 9"
    )
    assert len(place.events()) == 1


# Daily


def test_a_daily_run_reads_the_log_once_and_every_chain(place: Place) -> None:
    other, _ = tenants.create(place.world.database, "another")
    place.anchor()
    report = daily_run(place)
    assert (report["log"], report["heads"], report["unknown_chains"]) == ("intact", 4, 0)
    assert (report["tenants"], report["entries"], report["broken"]) == (2, 14, 0)
    assert standing(place) is None
    assert place.verifier.check_chain(other) == 2


def test_a_daily_run_finds_what_was_done_to_one_tenant_and_not_the_others(place: Place) -> None:
    tenants.create(place.world.database, "another")
    place.anchor()
    place.owner.forge_tail(4, 12)
    with structlog.testing.capture_logs() as lines:
        report = daily_run(place)
    assert report["broken"] == 1
    assert [(line["event"], line["seq"]) for line in lines] == [("audit_chain_broken", 5)]
    assert len(place.events()) == 1
    daily_run(place)
    assert len(place.events()) == 1
    assert standing(place) == "1 broken"


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE tenants SET chain_salt = sha256('') WHERE id = :tenant",
        "SELECT drop_tenant(:tenant)",
    ],
)
def test_a_chain_that_no_tenant_has_is_missed_by_the_log_alone(place: Place, attack: str) -> None:
    other, _ = tenants.create(place.world.database, "another")
    place.owner(
        "CREATE OR REPLACE FUNCTION drop_tenant(uuid) RETURNS void LANGUAGE sql"
        " SET session_replication_role = replica BEGIN ATOMIC"
        " DELETE FROM tenants WHERE id = $1; DELETE FROM audit_heads WHERE tenant_id = $1;"
        " DELETE FROM audit_entries WHERE tenant_id = $1; END",
        "DELETE FROM audit_anchors WHERE tenant_id = :tenant",
        attack,
    )
    with structlog.testing.capture_logs() as lines:
        report = daily_run(place)
    assert report["unknown_chains"] == 1
    assert [line["event"] for line in lines] == ["audit_chain_without_tenant"]
    assert standing(place) == "1 in the log without a tenant"
    assert place.verifier.verify(other, Asked())["unknown_chains"] == 1


def test_a_tenant_whose_break_is_mended_is_healed_by_a_daily_run(place: Place) -> None:
    place.owner("UPDATE audit_entries SET action = 'other' WHERE tenant_id = :tenant AND seq = 3")
    daily_run(place)
    assert standing(place) == "1 broken"
    place.owner("UPDATE audit_entries SET action = 'test.do' WHERE tenant_id = :tenant AND seq = 3")
    daily_run(place)
    assert standing(place) is None


def test_a_worker_runs_the_job_that_the_clock_asks_for(log_runtime: Runtime) -> None:
    tenant_id, _ = tenants.create(log_runtime.database, "verified by a worker")
    with log_runtime.database.across_tenants() as session:
        everyone = verification.look(session)
        one = verification.enqueue(session, tenant_id, Asked())
    for job in (one, everyone):
        work_on(log_runtime, job.tenant_id, job.id)
        with log_runtime.database.transaction(job.tenant_id) as session:
            ended = jobs.get(session, job.tenant_id, job.id)
        assert (ended.kind, ended.error) == ("verify_audit", None)
        assert ended.progress is not None


# No false alarms


def test_nothing_is_called_broken_while_eight_write_and_the_log_grows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent, "LOOK_BACK", 256)
    stop = Event()
    failed: list[BaseException] = []

    def repeat(work: object) -> None:
        try:
            while not stop.is_set():
                work()  # type: ignore[operator]  # each is called without arguments
        except BaseException as error:  # noqa: BLE001  # shown by the test
            failed.append(error)
            stop.set()

    def write() -> None:
        with place.world.database.transaction(place.tenant_id) as session:
            audit.append(session, place.tenant_id, SYSTEM, "test.do", target=("test", "1"))

    workers = [Thread(target=repeat, args=(each,)) for each in [*[write] * 8, place.anchor]]
    for worker in workers:
        worker.start()
    reports = []
    try:
        for _ in range(12):
            reports.append(place.verify())
            reports.append(place.verify(since_anchor=True))
        daily_run(place)
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    assert failed == []
    assert reports[-1]["entries"] > reports[0]["entries"] > 12
    assert reports[-1]["anchored_through"] > 12
    assert standing(place) is None
    assert place.events() == []
