"""What is found is told: once for each break, to the tenant and the operator, until it is healed.

By a request, by a job, and daily for all.
"""

import json
from threading import Event, Thread
from typing import Any

import pytest
import structlog

from app.core import tenants
from app.core.audit import chain, chain_identity
from app.core.callers import SYSTEM
from app.core.jobs import job_rows
from app.core.verification import alerts, time_budget, unknown_chains
from app.core.verification import jobs as verification
from app.core.verification.checks import incremental
from app.core.verification.verifier import Asked
from app.errors import AuditChainBroken, Busy, LogDamaged, NotFound
from app.ledger.hash_chain import Head
from app.lib.crypto.sealing import MasterKeys
from app.manage import commands
from app.models import Job
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.evidence.chains import Place, daily_run, done, standing
from tests.support.secrets import MASTER_KEYS


def answered(place: Place, asked: Asked) -> dict[str, Any] | None:
    with place.world.database.transaction(place.tenant_id) as session:
        return verification.answered(session, MASTER_KEYS, place.tenant_id, asked)


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
    assert [line["event"] for line in lines] == ["audit_chain_broken", "audit_break_not_stored"]


def test_a_head_that_a_caller_invented_is_refused_and_told_to_nobody(place: Place) -> None:
    with structlog.testing.capture_logs() as lines:
        assert place.broken(kept=Head(4, "0" * 64)) == (4, "other_head")
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("supplied_head_contradicted", "warning")
    ]
    assert place.events() == []
    assert standing(place) is None


def test_a_log_that_does_not_hold_is_the_operator_s_trouble_until_it_holds(place: Place) -> None:
    place.owner(
        "UPDATE log_tiles SET data = set_byte(data, 9, get_byte(data, 9) # 1) WHERE level = -1"
    )
    with pytest.raises(LogDamaged), structlog.testing.capture_logs() as lines:
        place.verify()
    assert [line["event"] for line in lines] == ["log_not_verified"]
    assert "tile/entries/000" in (standing(place) or "")
    assert place.events() == []
    assert daily_run(place)["log"] == "log-damaged"


def test_what_was_said_of_the_log_is_healed_by_whoever_finds_it_good(place: Place) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    with place.world.database.across_tenants() as session:
        alerts.orphan(session, bytes(32), 1, 0)
    change = "UPDATE log_tiles SET data = set_byte(data, 9, get_byte(data, 9) # 1) WHERE level = -1"
    place.owner(change)
    with pytest.raises(LogDamaged):
        place.verify()
    with pytest.raises(LogDamaged):
        place.verifier.verify(other, Asked())
    place.owner(change)
    assert place.verify(since_anchor=True)
    assert "tile/entries/000" in (standing(place) or "")
    assert place.verifier.verify(other, Asked())
    assert standing(place) == "1 in the log without a tenant", "for that nobody has looked"


def test_a_chain_that_is_broken_says_nothing_of_the_log(place: Place) -> None:
    change = "UPDATE log_tiles SET data = set_byte(data, 9, get_byte(data, 9) # 1) WHERE level = -1"
    place.owner(change)
    with pytest.raises(LogDamaged):
        place.verify()
    place.owner(change)
    place.owner.rewrite(3, action="other")
    place.broken()
    assert "1 broken; not verified" in (standing(place) or "")


# Jobs


def test_what_takes_longer_than_somebody_waits_is_left_to_a_job(place: Place) -> None:
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


def test_whoever_invents_questions_gets_no_more_than_some_at_once(place: Place) -> None:
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


def test_an_operator_acknowledges_a_chain_by_its_name_alone(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert commands.main(["audit", "acknowledge", "0" * 64]) == 1
    assert "No chain of this name is open" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        commands.main(["audit", "acknowledge", "0" * 63])


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


# Daily


def test_a_daily_run_reads_the_log_once_and_every_chain(place: Place) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    place.anchor()
    report = daily_run(place)
    assert (report["log"], report["heads"], report["unknown_chains"]) == ("intact", 4, 0)
    assert (report["tenants"], report["entries"], report["broken"]) == (2, 14, 0)
    assert standing(place) is None
    assert place.verifier.check_chain(other) == 2


def test_a_daily_run_finds_what_was_done_to_one_tenant_and_not_the_others(place: Place) -> None:
    tenants.create(place.world.database, MASTER_KEYS, "another")
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
    ("attack", "told", "stands"),
    [
        (
            "UPDATE tenants SET chain_salt = sha256('') WHERE id = :tenant",
            ["audit_chain_without_tenant", "audit_chain_broken"],
            "1 broken; 1 in the log without a tenant",
        ),
        (
            "SELECT drop_tenant(:tenant)",
            ["audit_chain_without_tenant"],
            "1 in the log without a tenant",
        ),
    ],
)
def test_a_chain_that_no_tenant_has_is_missed_by_the_log_alone(
    place: Place, attack: str, told: list[str], stands: str
) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
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
    assert [line["event"] for line in lines] == told
    assert standing(place) == stands
    answer = place.verifier.verify(other, Asked())
    assert (answer["unknown_chains"], answer["unknown_chains_at"]) == (1, report["began"])


def drop_tenant(place: Place) -> None:
    place.owner(
        "SET LOCAL session_replication_role = replica",
        *(
            f"DELETE FROM {table} WHERE tenant_id = :tenant"
            for table in ("audit_heads", "audit_entries", "audit_anchors")
        ),
        "DELETE FROM tenants WHERE id = :tenant",
    )


def acknowledge(place: Place, chain: bytes) -> None:
    with place.world.database.across_tenants() as session:
        unknown_chains.acknowledge(session, MASTER_KEYS, chain)


def test_a_chain_whose_tenant_was_removed_on_purpose_is_closed_by_its_name(place: Place) -> None:
    name = bytes.fromhex(place.verify()["chain"])
    with pytest.raises(NotFound):
        acknowledge(place, name)
    drop_tenant(place)
    daily_run(place)
    assert standing(place) == "1 in the log without a tenant"
    with structlog.testing.capture_logs() as lines:
        acknowledge(place, name)
    assert [(line["event"], line["chain"]) for line in lines] == [
        ("unknown_chain_acknowledged", name.hex())
    ]
    assert standing(place) is None
    assert daily_run(place)["unknown_chains"] == 0
    assert standing(place) is None


def test_who_has_the_database_alone_acknowledges_nothing(place: Place) -> None:
    name = bytes.fromhex(place.verify()["chain"])
    drop_tenant(place)
    daily_run(place)
    other = MasterKeys.parse(MasterKeys.generate())
    with place.world.database.across_tenants() as session:
        unknown_chains.acknowledge(session, other, name)
    assert daily_run(place)["unknown_chains"] == 1
    assert standing(place) == "1 in the log without a tenant"


def test_nothing_is_healed_while_a_chain_without_a_tenant_is_open(place: Place) -> None:
    """The break may be in a chain of that name, which its tenant does not have any more."""
    name = bytes.fromhex(place.verify()["chain"])
    place.owner.forge_tail(4, 12)
    place.broken()
    place.owner(
        "DELETE FROM audit_anchors WHERE tenant_id = :tenant",
        "UPDATE tenants SET chain_salt = NULL, chain_seal = NULL WHERE id = :tenant",
    )
    assert chain_identity.complete(place.world.database, MASTER_KEYS) == 1
    daily_run(place)
    assert place.verify()["unknown_chains"] == 1
    assert standing(place) == "1 broken; 1 in the log without a tenant"
    acknowledge(place, name)
    assert place.verify()
    assert standing(place) is None


def test_nobody_says_how_many_chains_are_unknown_before_a_run_has_looked(place: Place) -> None:
    assert place.verify()["unknown_chains"] is None
    began = daily_run(place)["began"]
    answer = place.verify()
    assert (answer["unknown_chains"], answer["unknown_chains_at"]) == (0, began)


FORGET = "DELETE FROM audit_breaks WHERE tenant_id = '00000000-0000-0000-0000-000000000000'"
POSTPONE = "UPDATE jobs SET progress = replace(progress, :old, :new) WHERE dedupe_key = 'all'"
NOTHING_FOUND = '{"began":"2026-01-31T12:00:00.000000Z","log":"intact","unknown_chains":0}'


def test_what_a_daily_run_found_of_unknown_chains_is_not_the_owner_s_to_change(
    place: Place,
) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    drop_tenant(place)
    began = daily_run(place)["began"]
    place.owner(FORGET)
    place.owner(POSTPONE, old='"began":"20', new='"began":"29')
    answer = place.verifier.verify(other, Asked())
    assert (answer["unknown_chains"], answer["unknown_chains_at"]) == (1, began)


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE jobs SET progress = CAST(:nothing AS text)",
        """INSERT INTO jobs (tenant_id, id, kind, args, dedupe_key, status, finished_at, progress)
           SELECT tenant_id, '7fffffff-0000-7000-8000-000000000000', kind, args, dedupe_key, status,
                  finished_at, progress FROM jobs WHERE kind = 'verify_audit'""",
    ],
)
def test_a_daily_run_that_the_owner_wrote_has_looked_at_nothing(place: Place, attack: str) -> None:
    began = daily_run(place)["began"]
    assert place.verify()["unknown_chains_at"] == began
    place.owner(attack, nothing=NOTHING_FOUND)
    answer = place.verify()
    assert (answer["unknown_chains"], answer["unknown_chains_at"]) == (None, None)


def test_a_tenant_that_cannot_be_verified_stops_nobody_else_s_verification(place: Place) -> None:
    last, _ = tenants.create(place.world.database, MASTER_KEYS, "behind it")
    place.owner(
        "UPDATE audit_entries SET action = 'other' WHERE tenant_id = :last AND seq = 1", last=last
    )
    place.owner("ALTER TABLE audit_heads ALTER COLUMN hash DROP NOT NULL")
    place.owner("UPDATE audit_heads SET hash = NULL WHERE tenant_id = :tenant")
    try:
        with structlog.testing.capture_logs() as lines:
            report = daily_run(place)
    finally:
        place.owner("UPDATE audit_heads SET hash = sha256('') WHERE hash IS NULL")
        place.owner("ALTER TABLE audit_heads ALTER COLUMN hash SET NOT NULL")
    assert (report["failed"], report["broken"], report["tenants"]) == (1, 1, 2)
    assert [line["event"] for line in lines] == ["audit_chain_not_verified", "audit_chain_broken"]
    assert (lines[0]["log_level"], lines[0]["error"]) == ("critical", "AttributeError")


def test_a_tenant_whose_break_is_mended_is_healed_by_a_daily_run(place: Place) -> None:
    place.owner("UPDATE audit_entries SET action = 'other' WHERE tenant_id = :tenant AND seq = 3")
    daily_run(place)
    assert standing(place) == "1 broken"
    place.owner("UPDATE audit_entries SET action = 'test.do' WHERE tenant_id = :tenant AND seq = 3")
    daily_run(place)
    assert standing(place) is None


def test_a_worker_runs_the_job_that_the_clock_asks_for(log_runtime: Runtime) -> None:
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


# No false alarms


def test_nothing_is_called_broken_while_eight_write_and_the_log_grows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incremental, "LOOK_BACK", 256)
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
            chain.append(session, place.tenant_id, SYSTEM, "test.do", target=("test", "1"))

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
