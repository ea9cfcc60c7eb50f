"""Resealing takes bounded steps beside processes that change rows and seal."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from app import ids
from app.core.callers import Caller, Role
from app.core.jobs import leases, steps
from app.core.jobs.steps import Step
from app.core.master_keys import resealing
from app.core.webhooks import webhooks
from app.models import NO_TENANT
from jobs.process.runtime import Runtime
from tests.jobs.resealing.sealed import check_all_works, deliver_one, fill
from tests.jobs.resealing.sites import A_ID, B_ID, A, B, Site, progress
from tests.support.callers.api import Api
from tests.support.callers.making import make_record
from tests.support.faults import until


@pytest.mark.parametrize("writer", [(B, A), (A, B)], ids=["with the new key", "with the old one"])
def test_who_changes_a_row_meanwhile_keeps_the_last_word(
    site: Site, writer: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = fill(site)
    job_id = site.begin(B, A)
    monkeypatch.setattr(resealing, "MOST_PIECES", 1)
    caller = Caller(site.tenant.id, ids.new(), Role.ADMIN, None, "test")
    with site.worker(B, A) as worker, site.worker(*writer) as other:
        while '"webhooks.sealed_secrets", [], true' not in one_step(worker, job_id):
            pass
        step = threading.Thread(target=one_step, args=(worker, job_id))
        with other.database.transaction(site.tenant.id) as session:
            _, fresh = webhooks.rotate_secret(
                session, caller, other.settings, known.webhook, timedelta(hours=1)
            )
            step.start()
            until(lambda: site.waits_for_a_row("UPDATE webhooks%"))
        step.join()
    monkeypatch.undo()
    known.secrets.insert(0, fresh)
    site.run(B, A)
    # What a process with the old order sealed stays under it, is told, and comes with the next run.
    under_a = [str(place) for place in site.status(B, A).seals.get(A_ID, ())]
    assert under_a == ([] if writer == (B, A) else ["webhooks.sealed_secrets"])
    site.run(B, A)
    site.later()
    assert set(site.status(B, A).seals) == {B_ID}
    check_all_works(site, known, B)


def one_step(worker: Runtime, job_id: UUID) -> str:
    """Take one step of the job; return where it is then."""
    with worker.database.across_tenants() as session:
        job = leases.claim(session, NO_TENANT, job_id)
        assert job is not None
        step = resealing.step(worker.settings.master_keys, session, NO_TENANT, job)
        assert isinstance(step, Step)
        assert steps.advance(session, job, step)
    return str(step.cursor)


def test_it_runs_beside_processes_that_seal_under_either_key(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = fill(site)
    job_id = site.begin(B, A)
    monkeypatch.setattr(resealing, "MOST_ROWS", 2)
    monkeypatch.setattr(resealing, "MOST_PIECES", 1)

    def write(api: Api) -> list[dict[str, Any]]:
        made = []
        for number in range(15):
            made.append(make_record(api, known.session))
            api.post("/v1/agents", {"name": "n"}, headers={"Idempotency-Key": f"{number}"})
            path = f"/v1/webhooks/{ids.text('whk', known.webhook)}/rotate-secret"
            assert api.post(path, {"overlap_seconds": 0}).status_code == 200
        return made

    # Made one after the other: CPython 3.11 fails at times where two threads compile at once
    # (python/cpython#106905), and werkzeug compiles its rules.
    with (
        site.worker(B, A) as worker,
        site.api(A, B) as old,
        site.api(B, A) as new,
        ThreadPoolExecutor(2) as pool,
    ):
        writers = [pool.submit(write, api) for api in (old, new)]
        while one_step(worker, job_id) != "None":
            pass
        written = [record for each in writers for record in each.result()]
    monkeypatch.undo()
    assert progress(site.run(B, A))["unopened"] == 0
    assert set(site.status(B, A).seals) == {B_ID}
    with site.api(B) as api, site.worker(B) as worker:
        for record in written:
            assert api.get(f"/v1/records/{record['id']}/bundle").status_code == 200
        path = f"/v1/webhooks/{ids.text('whk', known.webhook)}/rotate-secret"
        known.secrets = [api.post(path, {"overlap_seconds": 0}).json["secret"]]
        deliver_one(site, known, api, worker)


def test_a_step_seals_a_bounded_number_of_bytes_and_at_least_one_row(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(site)
    size = int(site.scalar("SELECT max(octet_length(bytes)) FROM bundles"))
    monkeypatch.setattr(resealing, "MOST_BYTES", 1)
    job_id = site.begin(B, A)
    steps, before = 0, 0
    with site.worker(B, A) as worker:
        while one_step(worker, job_id) != "None":
            now = site.status(B, A).seals.get(B_ID, Counter()).total()
            assert now - before <= 1
            steps, before = steps + 1, now
    total = site.status(B, A).seals[B_ID].total()
    assert set(site.status(B, A).seals) == {B_ID}
    assert steps >= total - 1
    assert size > 1
