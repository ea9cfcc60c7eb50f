"""A verification that takes longer than a request waits is a job, a few of them at once."""

from typing import Any

import pytest
from sqlalchemy import Engine

from app.core import tenants
from app.core.jobs import job_rows
from app.core.verification import jobs as verification
from app.core.verification import time_budget
from app.core.verification.verifier import Asked
from app.errors import AuditChainBroken, Busy
from app.ledger.hash_chain import Head
from app.models import Job
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.database.databases import empty
from tests.support.evidence.chains import Place, done
from tests.support.secrets import MASTER_KEYS


def answered(place: Place, asked: Asked) -> dict[str, Any] | None:
    with place.world.database.transaction(place.tenant_id) as session:
        return verification.answered(session, MASTER_KEYS, place.tenant_id, asked)


def test_a_verification_longer_than_its_caller_waits_is_left_to_a_job(place: Place) -> None:
    with pytest.raises(time_budget.TakesLonger):
        place.verifier.verify(place.tenant_id, Asked(), seconds=0)
    with place.world.database.transaction(place.tenant_id) as session:
        job = verification.enqueue(session, place.tenant_id, Asked(full=True))
        assert verification.enqueue(session, place.tenant_id, Asked(full=True)).id == job.id
    ended = done(place, job)
    assert ended.status == "succeeded"
    found = answered(place, Asked(full=True))
    assert found is not None
    assert found == place.verify() | {"verified_at": found["verified_at"]}
    assert answered(place, Asked()) is None
    place.owner("UPDATE jobs SET finished_at = finished_at - interval '1 minute'")
    assert answered(place, Asked(full=True)) is None


def test_a_tenant_has_no_more_than_two_verification_jobs_at_once(place: Place) -> None:
    def ask(number: int) -> Job:
        with place.world.database.transaction(place.tenant_id) as session:
            asked = Asked(kept=Head(1, f"{number:064x}"))
            return verification.enqueue(session, place.tenant_id, asked)

    first, second = ask(1), ask(2)
    with pytest.raises(Busy):
        ask(3)
    assert (ask(1).id, ask(2).id) == (first.id, second.id)
    done(place, first)
    assert ask(3).id not in (first.id, second.id)


def test_a_job_that_finds_a_break_ends_dead_and_names_the_place(place: Place) -> None:
    place.owner.cut(8)
    with place.world.database.transaction(place.tenant_id) as session:
        asked = Asked(kept=Head(12, "0" * 64))
        job = verification.enqueue(session, place.tenant_id, asked)
    ended = done(place, job)
    with pytest.raises(AuditChainBroken) as caught:
        answered(place, asked)
    assert (caught.value.report["seq"], caught.value.report["reason"]) == (9, "missing")
    assert caught.value.report["verified_at"]
    assert ended.status == "dead"
    assert (ended.error or "").startswith(
        "audit-chain-broken: The audit chain is broken at entry 9"
    )
    assert len(place.events()) == 1


def test_a_worker_runs_the_job_that_the_clock_asks_for(
    log_runtime: Runtime, log_owner: Engine
) -> None:
    # The tests before in that database may have left it damaged.
    empty(log_owner)
    tenant_id, _ = tenants.create(log_runtime.database, MASTER_KEYS, "verified by a worker")
    with log_runtime.database.across_tenants() as session:
        everyone = verification.enqueue_daily(session)
        one = verification.enqueue(session, tenant_id, Asked())
    for job in (one, everyone):
        work_on(log_runtime, job.tenant_id, job.id)
        with log_runtime.database.transaction(job.tenant_id) as session:
            ended = job_rows.get(session, job.tenant_id, job.id)
        assert (ended.kind, ended.error) == ("verify_audit", None)
        assert ended.progress is not None
