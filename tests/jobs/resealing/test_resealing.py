"""All that one key sealed comes under the next, also after a kill; then the old key can go."""

import subprocess
import sys

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from app import ids
from app.core.verification import alerts
from app.errors import Conflict
from tests.jobs.resealing.sealed import check_all_works, fill
from tests.jobs.resealing.sites import A_ID, B_ID, DROPPABLE, PLACES, A, B, Site, progress, work
from tests.support.evidence.chains import BROKEN_HEADS
from tests.support.faults import until


def entries(site: Site) -> int:
    """Return how many entries of this action the tenant's chain has."""
    with site.api(B, A) as api:
        return len(api.get("/v1/audit?action=master_key.rotate").json["data"])


def test_everything_comes_under_the_new_key_though_killed_and_the_old_one_can_be_dropped(
    site: Site,
) -> None:
    known = fill(site)
    before = site.status(B, A).seals
    assert set(before) == {A_ID}
    assert set(before[A_ID]) == set(PLACES), "the test has something sealed in every place"
    kill_in_the_middle(site)
    halfway = site.status(B, A)
    assert 0 < halfway.seals[B_ID].total() < before[A_ID].total()
    assert halfway.seals[A_ID] + halfway.seals[B_ID] == before[A_ID]
    check_all_works(site, known, B, A)

    site.execute("UPDATE jobs SET locked_until = created_at WHERE kind = 'reseal'")
    done = site.run(B, A)
    assert (done.status, progress(done)["unopened"]) == ("succeeded", 0)
    site.later()
    after = site.status(B, A)
    assert set(after.seals) == {B_ID}
    assert f"{A_ID}: {DROPPABLE}" in list(after.lines())
    check_all_works(site, known, B)
    assert entries(site) == 1


def kill_in_the_middle(site: Site) -> None:
    """Kill a worker in a transaction that has changed a row and waits for another's."""
    job_id = site.begin(B, A)
    with site.owner.connect() as holding:
        holding.execute(text("SET LOCAL app.every_tenant = 'on'"))
        last = "SELECT record_id FROM bundles ORDER BY record_id DESC LIMIT 1 OFFSET 1"
        holding.execute(text(f"SELECT FROM bundles WHERE record_id = ({last}) FOR UPDATE"))
        with subprocess.Popen(
            [sys.executable, "-m", "tests.jobs.resealing.reseal_process", str(job_id)],
            env=site.environ(B, A),
        ) as worker:
            try:
                until(lambda: site.waits_for_a_row("UPDATE bundles%"), seconds=60)
            finally:
                worker.kill()
    until(lambda: not site.waits_for_a_row("%"))


def test_a_second_run_changes_nothing_and_leaves_no_entry(site: Site) -> None:
    fill(site)
    first = site.run(B, A)
    assert progress(first)["resealed"] == site.status(B, A).seals[B_ID].total()
    seals = "SELECT md5(string_agg(bytes::text, '' ORDER BY record_id)) FROM bundles"
    before = site.scalar(seals)
    second = site.run(B, A)
    assert (first.id, second.status) == (second.id, "succeeded")
    assert progress(second) == {"resealed": 0, "unopened": 0, "tenants": 1}
    assert site.scalar(seals) == before
    assert entries(site) == 1


def test_a_worker_without_the_new_key_in_front_changes_nothing(site: Site) -> None:
    fill(site)
    job_id = site.begin(B, A)
    for keys in ((A,), (A, B)):
        with site.worker(*keys) as worker:
            job = work(worker, job_id)
        assert job.status == "retrying"
        assert job.error == f"This worker's MASTER_KEYS does not begin with the key {B_ID}."
        site.execute("UPDATE jobs SET run_at = created_at WHERE kind = 'reseal'")
    assert set(site.status(A, B).seals) == {A_ID}
    with site.worker(B, A) as worker:
        assert work(worker, job_id).status == "succeeded"


def test_what_does_not_open_is_left_counted_and_named(site: Site) -> None:
    known = fill(site)
    site.execute("UPDATE webhooks SET sealed_secrets = set_byte(sealed_secrets, 40, 0)")
    site.execute("UPDATE webhooks SET sealed_secrets = set_byte(sealed_secrets, 41, 0)")
    before = site.scalar("SELECT sealed_secrets FROM webhooks")
    with capture_logs() as said:
        done = site.run(B, A)
    assert (done.status, progress(done)["unopened"]) == ("succeeded", 1)
    (line,) = [line for line in said if line["event"] == "unsealing_failed"]
    assert (line["place"], line["count"]) == ("webhooks.sealed_secrets", 1)
    assert line["first"]["key"] == (str(site.tenant.id), str(known.webhook))
    assert site.scalar("SELECT sealed_secrets FROM webhooks") == before
    assert [str(place) for place in site.status(B, A).seals[A_ID]] == ["webhooks.sealed_secrets"]


def test_where_the_key_is_missing_webhooks_show_their_host_alone(site: Site) -> None:
    wanted = {"url": site.receiver.url("/t0k3n"), "headers": {"Authorization": "Bearer abc"}}
    with site.api(A) as api:
        assert api.post("/v1/webhooks", wanted).status_code == 201
    with site.api(B) as api:
        (shown,) = api.get("/v1/webhooks").json["data"]
    assert (shown["url"], shown["headers"]) == (site.receiver.url("/***"), None)


@pytest.mark.parametrize("damage", BROKEN_HEADS.values(), ids=BROKEN_HEADS.keys())
def test_a_broken_audit_chain_keeps_nothing_from_being_sealed_anew(site: Site, damage: str) -> None:
    fill(site)
    with site.owner.begin() as connection:
        assert connection.execute(text(damage), {"tenant": site.tenant.id}).rowcount == 1
    with capture_logs() as said:
        done = site.run(B, A)
    assert (done.status, progress(done)["unopened"]) == ("succeeded", 0)
    assert set(site.status(B, A).seals) == {B_ID}
    (line,) = [line for line in said if line["event"] == "audit_chain_broken"]
    assert line["tenant_id"] == ids.text("ten", site.tenant.id)
    assert entries(site) == 0
    with site.worker(B, A) as worker, worker.database.across_tenants() as session:
        assert alerts.open_breaks(session) == {"chains": "1 broken"}


def test_a_run_towards_one_key_is_not_turned_towards_another(site: Site) -> None:
    job_id = site.begin(B, A)
    with pytest.raises(Conflict, match="at work on another key"):
        site.begin(A, B)
    # One that no worker could do is: the keys were given in another order since.
    with site.worker(A) as worker:
        assert work(worker, job_id).status == "retrying"
    assert site.begin(A, B) == job_id
    with site.worker(A, B) as worker:
        assert work(worker, job_id).status == "succeeded"
