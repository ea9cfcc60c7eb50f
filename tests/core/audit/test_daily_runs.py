"""The daily run reads the log once and every chain; its notes, job and plans."""

import json
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog
from sqlalchemy import Engine, create_engine, text

from app.core import tenants
from app.core.jobs import job_rows, leases
from app.core.verification import alerts, anchored_heads, daily
from app.core.verification.verifier import Verifier
from app.database import Database, cursor, database_now
from app.lib.crypto.sealing import MasterKeys
from jobs.durable.run_job import work_on
from jobs.process.runtime import Runtime
from tests.support.database.databases import empty
from tests.support.database.plans import explained, rows_met
from tests.support.evidence.chains import FLIP_BUNDLES, Place, daily_run, done, standing
from tests.support.evidence.logs import Killed
from tests.support.secrets import MASTER_KEYS


def test_a_daily_run_reads_the_log_once_and_every_chain(place: Place) -> None:
    other, _ = tenants.create(place.world.database, MASTER_KEYS, "another")
    place.anchor()
    report = daily_run(place)
    assert (report["log"], report["heads"], report["unknown_chains"]) == ("intact", 4, 0)
    assert (report["tenants"], report["entries"], report["broken"]) == (2, 14, 0)
    assert standing(place) is None
    assert place.verifier.check_chain(other, None, None) == 2


def test_what_was_walked_is_not_walked_again(place: Place) -> None:
    place.world.grow(600)
    place.anchor()
    first = daily_run(place)
    assert (first["log"], first["walked"]) == ("intact", first["leaves"])
    place.world.grow(700)
    second = daily_run(place)
    # From the last whole tile on.
    grown = second["leaves"] - first["leaves"] // 256 * 256
    assert (second["log"], second["walked"]) == ("intact", grown)
    third = daily_run(place)
    assert (third["log"], third["walked"]) == ("intact", third["leaves"] % 256)


def test_what_was_changed_below_is_found_when_all_is_walked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.world.grow(600)
    daily_run(place)
    place.owner("UPDATE log_tiles SET data = set_byte(data, 9, 1) WHERE level = -1 AND number = 0")
    place.world.grow(300)
    assert daily_run(place)["log"] == "intact", "nobody read it"
    with monkeypatch.context() as patched:
        patched.setattr(daily, "FULL_EVERY", timedelta(0))
        assert daily_run(place)["log"] == "log-damaged"
    # A break that is open has all walked, until it is mended.
    assert daily_run(place)["log"] == "log-damaged"
    place.world.rebuild(repair=True)
    whole = daily_run(place)
    assert (whole["log"], whole["walked"]) == ("intact", whole["leaves"])
    assert daily_run(place)["walked"] < 256


def test_what_changed_where_the_new_leaves_begin_is_found_at_once(place: Place) -> None:
    place.world.grow(600)
    daily_run(place)
    place.world.grow(10)
    place.owner("UPDATE log_tiles SET data = set_byte(data, 9, 1) WHERE level = 1 AND number = 0")
    assert daily_run(place)["log"] == "log-damaged"


def test_a_killed_run_trusts_nothing_that_it_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.world.grow(1_500)
    monkeypatch.setattr(daily, "_LEAVES_AT_ONCE", 256)
    parts = iter(range(3))

    def settle(*_: object) -> None:
        if next(parts, None) is None:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(anchored_heads.HeadComparison, "settle", settle)
        with pytest.raises(Killed):
            daily_run(place)
    # As after its lease. Another leaf in a part that was read is found.
    place.owner("UPDATE jobs SET status = 'queued', locked_until = NULL WHERE finished_at IS NULL")
    place.owner("UPDATE log_tiles SET data = set_byte(data, 9, 1) WHERE level = -1 AND number = 0")
    assert daily_run(place)["log"] == "log-damaged"
    place.world.rebuild(repair=True)
    assert daily_run(place)["log"] == "intact"


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


def test_a_tenant_that_cannot_be_verified_does_not_stop_the_others_verification(
    place: Place,
) -> None:
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


LONG_AGO = "2026-01-01T00:00:00.000000Z"


def since(place: Place, keys: MasterKeys = MASTER_KEYS) -> datetime | None:
    with place.world.database.across_tenants() as session:
        return daily.unverified_since(session, keys)


def now(place: Place) -> datetime:
    with place.world.database.across_tenants() as session:
        return database_now(session)


def note(place: Place, at: str, keys: MasterKeys = MASTER_KEYS) -> None:
    """Put a note in its place that says since when the chains are not verified again."""
    with place.world.database.across_tenants() as session:
        alerts.write_note(session, keys, daily.KIND, {"since": at})


def test_a_run_that_ended_says_when_it_began(place: Place) -> None:
    before = now(place)
    assert (since(place) or before) < before
    report = daily_run(place)
    assert report["log"] == "intact"
    began = datetime.fromisoformat(str(report["began"]))
    assert before <= began <= now(place)
    assert since(place) == began


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE jobs SET finished_at = '2099-01-01', status = 'succeeded'",
        "UPDATE jobs SET finished_at = NULL, status = 'queued', run_at = '2099-01-01'",
        "UPDATE jobs SET finished_at = now(), status = 'succeeded', progress = '{}'",
        "DELETE FROM jobs",
    ],
)
def test_no_row_of_a_job_says_that_a_run_ended(place: Place, attack: str) -> None:
    note(place, LONG_AGO)
    with place.world.database.across_tenants() as session:
        daily.enqueue_daily(session)
    place.owner(attack)
    assert since(place) == datetime.fromisoformat(LONG_AGO)
    with place.world.database.across_tenants() as session:
        leases.free_stuck(session)
    daily_run(place)
    verified = since(place)
    assert verified is not None
    assert now(place) - verified < daily.OVERDUE


def test_a_note_that_this_service_did_not_seal_is_ignored(place: Place) -> None:
    place_of_none = since(place)
    note(place, "2099-01-01T00:00:00.000000Z")
    assert since(place) == place_of_none, "of a clock that was wrong"
    note(place, LONG_AGO, MasterKeys.parse(MasterKeys.generate()))
    assert since(place) == place_of_none
    place.owner("UPDATE sealed_notes SET sealed = '\\x00'")
    assert since(place) == place_of_none


def test_a_run_that_could_not_read_the_log_is_none(place: Place) -> None:
    before = since(place)
    place.owner(FLIP_BUNDLES)
    assert daily_run(place)["log"] == "log-damaged"
    assert since(place) == before


def test_a_run_that_left_a_chain_out_is_none(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    before = since(place)
    monkeypatch.setattr(Verifier, "check_chain", None)
    assert daily_run(place)["failed"] == 1
    assert since(place) == before


def test_a_run_that_found_a_break_is_one(place: Place) -> None:
    place.owner.cut(8)
    assert daily_run(place)["broken"] == 1
    assert now(place) - (since(place) or now(place)) < daily.MISSED


def test_a_run_that_was_missed_is_made_up_for_once_an_hour(place: Place) -> None:
    def is_asked_for() -> bool:
        with place.world.database.across_tenants() as session:
            return daily.watch(session, MASTER_KEYS)

    daily_run(place)
    assert not is_asked_for()
    note(place, LONG_AGO)
    with structlog.testing.capture_logs() as lines:
        assert not is_asked_for(), "one has just ended, and came to nothing"
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("audit_not_verified", "error")
    ]
    place.owner("UPDATE jobs SET finished_at = now() - interval '61 minutes'")
    assert is_asked_for()
    daily_run(place)
    assert not is_asked_for()


def test_a_job_that_finds_a_break_ends_dead_and_names_the_place(place: Place) -> None:
    place.owner.cut(8)
    with place.world.database.transaction(place.tenant_id) as session:
        job = daily.enqueue(session, place.tenant_id, {"seq": 12, "hash": "0" * 64})
    ended = done(place, job)
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
        everyone = daily.enqueue_daily(session)
        one = daily.enqueue(session, tenant_id, {})
    for job in (one, everyone):
        work_on(log_runtime, job.tenant_id, job.id)
        with log_runtime.database.transaction(job.tenant_id) as session:
            ended = job_rows.get(session, job.tenant_id, job.id)
        assert (ended.kind, ended.error) == ("verify_audit", None)
        assert ended.progress is not None


MANY = 2_000
TENANT = "'00000000-0000-7000-8000-000000000001'"
FILL = f"""
INSERT INTO tenants (id, name, chain_salt, chain_seal)
VALUES ({TENANT}, 'one', sha256(''), '') ON CONFLICT DO NOTHING;
INSERT INTO audit_heads VALUES ({TENANT}, 1, sha256('')) ON CONFLICT DO NOTHING;
INSERT INTO audit_entries (tenant_id, seq, body, hash, action, at, actor, target)
SELECT {TENANT}, n, '', sha256(n::text::bytea), 'a', now(), 'a', 't'
  FROM generate_series({{}}, {{}}) AS n;
INSERT INTO audit_anchors (tenant_id, seq, hash, at, leaf_hash)
SELECT tenant_id, seq, hash, at, hash FROM audit_entries ON CONFLICT DO NOTHING;
INSERT INTO log_leaves (id, leaf_hash, data, generation, leaf_index)
SELECT gen_random_uuid(), hash, '', 1, seq FROM audit_entries ON CONFLICT DO NOTHING;
"""
TABLES = ("tenants", "audit_heads", "audit_entries", "audit_anchors", "log_leaves")
LEAVES = """
SELECT array_agg(sha256('audit-chain:'::bytea || sha256(''))), array_agg(seq), array_agg(hash),
       array_agg(hash) FROM (SELECT seq, hash FROM audit_entries ORDER BY seq LIMIT 500) AS few
"""


@pytest.fixture
def grown(fresh_database: Database, admin_engine: Engine) -> Database:
    """A database that was analysed when each table had one row."""
    url = admin_engine.url.set(database=fresh_database.engine.url.database)
    owner: Engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        connection.execute(text("SET session_replication_role = replica"))
        connection.exec_driver_sql(FILL.format(1, 1))
        for table in TABLES:
            connection.execute(text(f"VACUUM ANALYZE {table}"))
            connection.execute(text(f"ALTER TABLE {table} SET (autovacuum_enabled = off)"))
        connection.exec_driver_sql(FILL.format(2, MANY))
    owner.dispose()
    return fresh_database


def test_heads_and_anchors_are_looked_up_by_their_keys(grown: Database) -> None:
    with grown.across_tenants() as session:
        leaves: Any = cursor(session).execute(LEAVES.encode()).fetchone()
        for query, values, found in (
            (anchored_heads._HELD, leaves, 500),
            (anchored_heads._ANCHORS, (1, MANY, TENANT.strip("'"), 1), 500),
        ):
            plan = explained(session.connection(), query, values, anchored_heads.PLAN)
            # Each node of the plan passes on what those below it have found.
            assert rows_met(plan) < 20 * found, json.dumps(plan)[:2000]
