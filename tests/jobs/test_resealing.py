"""Rotating the master keys: all that one key sealed comes under the next, and it can be dropped."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, text
from structlog.testing import capture_logs

from app import ids
from app.clock import rfc3339
from app.core import tenants
from app.core.callers import Caller, Role
from app.core.jobs import job_rows, leases, steps
from app.core.jobs.steps import Step
from app.core.log import generations
from app.core.log.recovery import succession
from app.core.log.sequencer import Sequencer
from app.core.master_keys import key_heartbeat, key_registry, resealing
from app.core.master_keys import status as master_key_status
from app.core.master_keys.sealed_columns import OF_A_TENANT, OF_THE_SERVICE
from app.core.master_keys.status import Status
from app.core.verification import alerts, daily_state, unknown_chains
from app.core.webhooks import webhooks
from app.database import Database, database_now
from app.errors import Conflict
from app.lib.crypto.sealing import MasterKeys
from app.lib.metric_registry import Tally
from app.manage import commands
from app.models import NO_TENANT, Job
from app.settings import Settings
from jobs.actors import check_master_keys as tick
from jobs.delivery.lane_run import LaneRun
from jobs.durable.run_job import work_on
from jobs.process import runtime as process
from jobs.process.runtime import Runtime
from tests.support.callers.api import Api, FreshTenant, serving
from tests.support.callers.making import make_finding, make_record, make_session
from tests.support.database.databases import made_database
from tests.support.evidence.chains import BROKEN_HEADS
from tests.support.evidence.packing import Packer, opened_runtime
from tests.support.faults import until
from tests.support.servers.receivers import Receiver

A, B = MasterKeys.generate(), MasterKeys.generate()
A_ID, B_ID = MasterKeys.parse(f"{A},{B}").ids
CHAIN = bytes(range(32))
ORIGIN = "resealed.test/log"
DROPPABLE = (
    "nothing in the database is under it: it can be dropped from MASTER_KEYS, or put in front if it"
    " is new"
)
LATELY = "bool_or(in_front_at > clock_timestamp() - interval '3 minutes')"
PLACES = (*OF_THE_SERVICE, *OF_A_TENANT)


@dataclasses.dataclass
class Site:
    """A service with a database of its own, of which any process may have any master keys."""

    settings: Settings
    owner: Engine
    tenant: FreshTenant
    receiver: Receiver

    def given(self, *keys: str) -> Settings:
        """Return the settings of a process with these keys."""
        return dataclasses.replace(self.settings, master_keys=MasterKeys.parse(",".join(keys)))

    @contextmanager
    def worker(self, *keys: str) -> Iterator[Runtime]:
        """Open what a worker with these keys holds."""
        with opened_runtime(self.given(*keys)) as opened:
            yield opened

    @contextmanager
    def api(self, *keys: str) -> Iterator[Api]:
        """Serve with these keys; yields the tenant's root caller."""
        with serving(self.given(*keys)) as api:
            yield api(self.tenant.root_key)

    @contextmanager
    def database(self) -> Iterator[Database]:
        """Open the database as the service's role."""
        opened = Database(self.settings.database_url, application="tests")
        try:
            yield opened
        finally:
            opened.close()

    def begin(self, *keys: str, force: bool = True) -> UUID:
        """Ask for everything to be sealed anew; return the job's id."""
        with self.database() as database, database.across_tenants() as session:
            wanted = MasterKeys.parse(",".join(keys))
            return resealing.begin(session, wanted, force=force).id

    def run(self, *keys: str) -> Job:
        """Have it done by a worker with these keys; return the job."""
        job_id = self.begin(*keys)
        with self.worker(*keys) as worker:
            return work(worker, job_id)

    def status(self, *keys: str) -> Status:
        """Look through everything."""
        with self.database() as database:
            return master_key_status.read(database, MasterKeys.parse(",".join(keys)))

    def execute(self, statement: str, **values: Any) -> int:
        """Do something behind the service's back."""
        with self.owner.begin() as connection:
            connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
            return connection.execute(text(statement), values).rowcount

    def scalar(self, query: str) -> Any:
        """Look something up."""
        with self.owner.begin() as connection:
            connection.execute(text("SET LOCAL app.every_tenant = 'on'"))
            return connection.scalar(text(query))

    def later(self) -> None:
        """Have every process that spoke so far spoken four minutes ago."""
        self.execute("UPDATE master_keys SET in_front_at = in_front_at - interval '4 minutes'")

    def environ(self, *keys: str) -> dict[str, str]:
        """Return the environment of a process with these keys."""
        return {
            **os.environ,
            "DATABASE_URL": self.settings.database_url,
            "MASTER_KEYS": ",".join(keys),
            "BASE_URL": self.settings.base_url,
            "LOG_LEVEL": "ERROR",
        }


def work(worker: Runtime, job_id: UUID) -> Job:
    """Take a turn at the job; return it as it is then."""
    work_on(worker, NO_TENANT, job_id)
    with worker.database.across_tenants() as session:
        return job_rows.get(session, NO_TENANT, job_id)


def progress(job: Job) -> dict[str, int]:
    return dict(json.loads(job.progress or "{}"))


@pytest.fixture
def site(settings: Settings, admin_engine: Engine) -> Iterator[Site]:
    """Return a service of one tenant, begun under the key A."""
    with made_database(settings, admin_engine) as own, Receiver() as receiver:
        owner = create_engine(own.database_admin_url)
        database = Database(own.database_url, application="tests")
        tenant = FreshTenant(*tenants.create(database, MasterKeys.parse(A), "rotated"))
        database.close()
        yield Site(own, owner, tenant, receiver)
        owner.dispose()


@dataclasses.dataclass
class Known:
    """What a caller knows of the service before its keys are rotated."""

    secrets: list[str]
    webhook: UUID
    session: str
    bundles: Mapping[str, bytes]
    packs: Mapping[str, bytes]
    key: str
    bundle_key: str
    verified: datetime | None


REPEATED = {"headers": {"Idempotency-Key": "once"}}
MINTED = {"name": "minted once", "role": "read"}


def fill(site: Site, records: int = 5) -> Known:
    """Have something sealed under A in every place."""
    with site.api(A) as api, site.worker(A) as worker:
        keys = worker.settings.master_keys
        made = api.post("/v1/webhooks", {"url": site.receiver.url()}).json
        rotated = api.post(f"/v1/webhooks/{made['id']}/rotate-secret", {}).json
        session = make_session(api)["id"]
        log = Sequencer(worker.database, keys, ORIGIN, None)
        packer = Packer(lambda key=None: api, site.tenant, worker, log)
        written = [make_record(api, session) for _ in range(records)]
        log.run()
        packs = {record["id"]: packer.built(record) for record in written[:2]}
        bundles = {
            record["id"]: api.get(f"/v1/records/{record['id']}/bundle").data for record in written
        }
        key = api.post("/v1/keys", MINTED, **REPEATED).json["key"]
        succession.succeed(log, keys, force=True)
        with worker.database.across_tenants() as opened:
            alerts.orphan(opened, CHAIN, 1, 0)
            unknown_chains.acknowledge(opened, keys, CHAIN)
            ended = {"began": rfc3339(database_now(opened)), "log": "intact", "failed": 0}
            daily_state.end(opened, keys, ended)
            verified = daily_state.unverified_since(opened, keys)
    webhook = ids.parse("whk", made["id"])
    assert webhook is not None
    bundle_key = written[0]["bundle"]["key_id"]
    secrets = [rotated["secret"], made["secret"]]
    return Known(secrets, webhook, session, bundles, packs, key, bundle_key, verified)


def check_all_works(site: Site, known: Known, *keys: str) -> None:
    """Use everything that was sealed, with these keys and no others."""
    with site.api(*keys) as api, site.worker(*keys) as worker:
        master_keys = worker.settings.master_keys
        for record, raw in known.bundles.items():
            assert api.get(f"/v1/records/{record}/bundle").data == raw
        for record, pack in known.packs.items():
            answer = api.get(f"/v1/records/{record}/evidence.zip", headers={"Prefer": "wait=0"})
            assert (answer.status_code, answer.data) == (200, pack)
        found = api.get("/v1/records?q=refunded").json["data"]
        assert {record["id"] for record in found} >= known.bundles.keys()
        again = api.post("/v1/keys", MINTED, **REPEATED)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.json["key"] == known.key
        assert make_record(api, known.session)["bundle"]["key_id"] == known.bundle_key
        deliver_one(site, known, api, worker)
        log = Sequencer(worker.database, master_keys, ORIGIN, None)
        log.run()
        with worker.database.across_tenants() as session:
            newest = generations.newest(session)
            assert newest is not None
            generations.require_appointed(master_keys, newest)
            assert newest.trouble is None
            assert unknown_chains.acknowledged(session, master_keys) == {CHAIN}
            assert daily_state.unverified_since(session, master_keys) == known.verified
        assert api.get("/v1/audit/verify").json["status"] == "intact"
        assert api.get("/readyz").json["parts"]["master_keys"] == "up"


def deliver_one(site: Site, known: Known, api: Api, worker: Runtime) -> None:
    """Have a finding delivered; every secret in force must have signed it."""
    from standardwebhooks.webhooks import Webhook

    site.receiver.requests.clear()
    make_finding(api, known.session)
    LaneRun(worker, site.tenant.id, known.webhook).run()
    (request,) = site.receiver.requests
    for secret in known.secrets:
        Webhook(secret).verify(request.body, dict(request.headers))


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
            [sys.executable, "-m", "tests.jobs.reseal_process", str(job_id)],
            env=site.environ(B, A),
        ) as worker:
            try:
                until(lambda: waits_for_a_row(site, "UPDATE bundles%"), seconds=60)
            finally:
                worker.kill()
    until(lambda: not waits_for_a_row(site, "%"))


def waits_for_a_row(site: Site, query: str) -> int:
    with site.owner.connect() as connection:
        found = connection.scalar(
            text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND query LIKE :query"
            ),
            {"query": query},
        )
    return int(found or 0)


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
            until(lambda: waits_for_a_row(site, "UPDATE webhooks%"))
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
        assert alerts.standing(session) == "1 broken"


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


# What operators see


@pytest.fixture
def command(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return what runs `master-key …` with some keys: its exit status, and all that was said."""

    def run(keys: tuple[str, ...], *arguments: str) -> tuple[int, str]:
        for name, value in site.environ(*keys).items():
            monkeypatch.setenv(name, value)
        done = commands.main(["master-key", *arguments])
        said = capsys.readouterr()
        assert not any(key in said.out + said.err for key in (A, B))
        return done, said.out + said.err

    return run


def test_status_says_what_is_under_each_key_and_which_can_be_dropped(
    site: Site, command: Callable[..., tuple[int, str]]
) -> None:
    fill(site)
    total = sum(site.scalar(f"SELECT count({place.column}) FROM {place.table}") for place in PLACES)
    code, said = command((B, A), "status")
    assert code == 0
    assert f"{B_ID}: keep it: it is in front and seals; 0 seals are under it\n" in said
    assert (
        f"{A_ID}: keep it: {total} seals are under it. `master-key reseal` seals them anew" in said
    )
    assert "          5  bundles.bytes\n" in said
    assert said.endswith("reseal: never asked for\n")

    code, said = command((B,), "status")
    assert code == 1
    assert (
        f"{A_ID}: MISSING from MASTER_KEYS: {total} seals do not open without it. Put it " in said
    )

    site.later()
    code, said = command((B, A), "reseal")
    assert code == 0, said
    job_id = ids.parse("job", said.splitlines()[0].rpartition(" ")[2])
    assert job_id is not None
    assert "reseal: queued, under " in command((B, A), "status")[1]
    with site.worker(B, A) as worker:
        work(worker, job_id)
    code, said = command((B, A), "status")
    assert code == 0
    assert f"{B_ID}: keep it: it is in front and seals; {total} seals are under it\n" in said
    assert f"{A_ID}: {DROPPABLE}\n" in said
    assert (
        f"reseal: succeeded, under {B_ID}: {total} sealed anew of 1 tenants, 0 did not open" in said
    )
    assert A_ID not in command((B,), "status")[1]


def test_reseal_waits_until_no_process_has_another_key_in_front(
    site: Site, command: Callable[..., tuple[int, str]]
) -> None:
    fill(site)
    with site.api(A, B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == "up"
    code, said = command((B, A), "reseal")
    assert code == 1
    assert f"another key than {B_ID} was in front of some process's MASTER_KEYS: {A_ID} at" in said
    assert command((B, A), "reseal", "--force")[0] == 0
    site.later()
    assert command((B, A), "reseal")[0] == 0


def test_a_key_that_a_process_still_seals_under_is_not_said_to_be_dropped(site: Site) -> None:
    site.run(B, A)
    with site.api(A, B) as api:
        api.get("/readyz")
    (verdict,) = [line for line in site.status(B, A).lines() if line.startswith(A_ID)]
    assert "keep it: nothing is under it, but it was in front of some process" in verdict
    with site.api(B) as api:
        assert A_ID in api.get("/readyz").json["parts"]["master_keys"]
    site.later()
    (verdict,) = [line for line in site.status(B, A).lines() if line.startswith(A_ID)]
    assert verdict == f"{A_ID}: {DROPPABLE}"
    with site.api(B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == "up"
    # One that comes back in front seals again, and is missed again.
    with site.api(A, B) as api:
        api.get("/readyz")
    with site.api(B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == key_registry.say_missing([A_ID])


def test_a_key_that_only_ever_stood_behind_is_not_missed(site: Site) -> None:
    """Half the processes were restarted with the next key behind; or it was withdrawn again."""
    for keys in ((A, B), (A,), (B, A)):
        with site.api(*keys) as api:
            assert api.get("/readyz").json["parts"]["master_keys"] == "up"
    # Now it was in front, and may have sealed.
    with site.api(A) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == key_registry.say_missing([B_ID])


def test_a_key_that_something_is_under_is_missed_though_nobody_had_it_in_front(site: Site) -> None:
    fill(site)
    site.execute("DELETE FROM master_keys")
    assert A_ID in site.status(B, A).seals
    with site.api(B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == key_registry.say_missing([A_ID])


@pytest.mark.parametrize("kind", ["web", "worker"])
def test_a_process_that_nobody_asks_says_what_it_has_in_front(
    site: Site, kind: str, command: Callable[..., tuple[int, str]]
) -> None:
    site.run(B, A)
    site.later()
    opened: Callable[..., AbstractContextManager[object]]
    opened = site.api if kind == "web" else site.worker
    with opened(A, B):
        until(lambda: site.scalar(f"SELECT {LATELY} FROM master_keys WHERE key_id = '{A_ID}'"))
        (verdict,) = [line for line in site.status(B, A).lines() if line.startswith(A_ID)]
        assert "keep it: nothing is under it, but it was in front of some process" in verdict
        code, said = command((B, A), "reseal")
        assert (code, A_ID in said) == (1, True)


def test_a_process_says_again_and_again_what_it_has_in_front(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_heartbeat, "EVERY_SECONDS", 0.05)
    with site.worker(A, B):
        for _ in range(2):
            until(lambda: site.scalar(f"SELECT {LATELY} FROM master_keys WHERE key_id = '{A_ID}'"))
            # Also after somebody has found it empty.
            site.later()
            site.execute("UPDATE master_keys SET emptied_at = clock_timestamp()")
        until(lambda: site.scalar("SELECT count(*) FROM master_keys WHERE emptied_at IS NULL"))


def test_what_could_not_be_said_is_said_once_the_database_is_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_heartbeat, "AGAIN_SECONDS", 0.05)
    site.execute("ALTER TABLE master_keys RENAME TO not_yet")
    with capture_logs() as said, site.worker(A, B):
        until(lambda: any(line["event"] == "master_key_not_announced" for line in said))
        site.execute("ALTER TABLE not_yet RENAME TO master_keys")
        until(lambda: site.scalar(f"SELECT {LATELY} FROM master_keys WHERE key_id = '{A_ID}'"))
    assert len([line for line in said if line["event"] == "master_key_not_announced"]) == 1


def test_a_key_that_was_in_front_when_a_long_look_began_is_not_found_empty(site: Site) -> None:
    """It may have sealed what was looked through already."""
    site.run(B, A)
    with site.api(A, B) as api:
        api.get("/readyz")
    keys = MasterKeys.parse(f"{B},{A}")
    with site.database() as database, database.across_tenants() as session:
        began = database_now(session)
    site.later()
    began -= timedelta(minutes=4)
    with site.database() as database, database.across_tenants() as session:
        key_registry.settle(session, keys, {B_ID}, began=began)
        assert [key for key, _ in key_registry.in_front(session, besides=B_ID, since=began)] == [
            A_ID
        ]
    with site.api(B) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == key_registry.say_missing([A_ID])


def test_a_key_that_was_dropped_too_early_is_missed_at_once_and_loudly(site: Site) -> None:
    with site.api(A) as api:
        assert "master_keys" not in api.get("/readyz").json["degraded"]
    with site.api(B) as api:
        answer = api.get("/readyz").json
        assert "master_keys" in answer["degraded"]
        assert answer["parts"]["master_keys"] == key_registry.say_missing([A_ID])
        assert A_ID in answer["parts"]["master_keys"]
    process.start(dataclasses.replace(site.given(B), redis_url=None), threads=4, tally=Tally())
    try:
        with capture_logs() as said:
            tick.check_master_keys()
    finally:
        process.stop()
    (line,) = [line for line in said if line["event"] == "master_key_missing"]
    assert (line["log_level"], line["missing"]) == ("critical", [A_ID])
    with site.api(B, A) as api:
        assert api.get("/readyz").json["parts"]["master_keys"] == "up"


def test_a_release_without_a_key_that_is_in_use_warns(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_ADMIN_URL", site.settings.database_admin_url)
    for keys in ((A,), (B,), (B, A)):
        for name, value in site.environ(*keys).items():
            monkeypatch.setenv(name, value)
        assert commands.main(["migrate"]) == 0
        warned = f"warning: {key_registry.say_missing([A_ID])}\n" in capsys.readouterr().out
        assert warned is (keys == (B,))


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
