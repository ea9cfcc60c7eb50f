"""`/metrics`: figures of the whole stack, the same from each process, and never decreasing."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from time import perf_counter

import pytest
from flask import Flask
from prometheus_client.parser import text_string_to_metric_families
from redis import Redis
from sqlalchemy import Engine, create_engine, text

from app import heartbeats, metrics
from app.api.http.services import EXTENSION, Services
from app.api.resources.health import exposition
from app.core import tenants
from app.core.health.readiness import Readiness
from app.core.master_keys import key_registry
from app.database import Database
from app.heartbeats import Process
from app.lib.crypto.sealing import MasterKeys
from app.lib.gateway.gateway import READY
from app.settings import VERSION, Settings
from tests.support.callers.api import Api, application
from tests.support.faults import OwnValkey
from tests.support.secrets import MASTER_KEYS

Sample = tuple[str, tuple[tuple[str, str], ...]]
TOKEN = "t0ken"
# A write is proved by the row of the process's master key, which stays as it is.
COUNTED_PROOFS = """
CREATE SEQUENCE proofs;
CREATE FUNCTION count_proof() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
$$BEGIN PERFORM nextval('public.proofs'); RETURN new; END$$;
CREATE TRIGGER count_proof BEFORE UPDATE ON master_keys FOR EACH ROW
  WHEN (old.* IS NOT DISTINCT FROM new.*) EXECUTE FUNCTION count_proof()
"""


def samples(written: str) -> dict[Sample, float]:
    """Read an exposition as Prometheus does."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(written)
        for sample in family.samples
    }


def scrape(app: Flask) -> dict[Sample, float]:
    """Ask one web process."""
    answer = app.test_client().get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


def of(app: Flask) -> Services:
    found = app.extensions[EXTENSION]
    assert isinstance(found, Services)
    return found


@pytest.fixture
def owner(fresh_settings: Settings) -> Iterator[Engine]:
    """Return an engine of the owner of the stack's database."""
    engine = create_engine(fresh_settings.database_admin_url)
    yield engine
    engine.dispose()


@pytest.fixture
def webs(fresh_settings: Settings, own_valkey: OwnValkey) -> Iterator[tuple[Flask, Flask]]:
    """Two web processes of a stack of their own."""
    mine = replace(fresh_settings, metrics_token=TOKEN, redis_url=own_valkey.url)
    with application(mine) as one, application(mine) as other:
        yield one, other


def test_two_web_processes_say_the_same_and_count_each_request_once(
    webs: tuple[Flask, Flask], fresh_database: Database
) -> None:
    one, other = webs
    _, key = tenants.create(fresh_database, MASTER_KEYS, "asked")
    for app in (one, one, other):
        Api(app.test_client(), key).get("/v1/keys/self")
    # What a process has counted is in the table once it was asked, or after five seconds.
    scrape(other)
    answered = ("method", "GET"), ("route", "/v1/keys/self"), ("status", "200")
    for app in (one, other):
        seen = scrape(app)
        assert seen["http_requests_total", answered] == 3
        route = ("route", "/v1/keys/self")
        assert seen["http_request_duration_seconds_count", (route,)] == 3
        assert seen["http_request_duration_seconds_bucket", (("le", "+Inf"), route)] == 3


def test_what_a_request_waited_for_a_thread_counts_as_its_duration(
    webs: tuple[Flask, Flask],
) -> None:
    one, _ = webs
    waited = {READY: perf_counter() - 100}
    assert one.test_client().get("/", environ_overrides=waited).status_code < 400
    seen = scrape(one)
    route = ("route", "/")
    assert seen["http_request_duration_seconds_bucket", (("le", "10.0"), route)] == 0
    assert seen["http_request_duration_seconds_bucket", (("le", "+Inf"), route)] == 1


def test_no_counter_decreases_from_process_to_process_or_when_one_ends(
    webs: tuple[Flask, Flask],
) -> None:
    one, other = webs
    seen: dict[Sample, float] = {}
    for number in range(10):
        (one, other)[number % 2].test_client().get("/healthz")
        if number == 5:
            of(one).close()
        now = scrape((other, one)[number % 2] if number < 5 else other)
        for sample, value in seen.items():
            if sample[0].endswith(("_total", "_count", "_bucket", "_sum")):
                assert now[sample] >= value, sample
        seen = now


def test_what_never_happened_is_there_as_nothing(webs: tuple[Flask, Flask]) -> None:
    seen = scrape(webs[0])
    assert seen["record_service_claims_total", ()] == 0
    assert seen["record_service_possible_duplicates_total", (("reason", "lost_claim"),)] == 0
    assert seen["record_service_lanes_due", ()] == 0
    assert seen["record_service_jobs", (("status", "dead"),)] == 0


def test_a_part_that_is_not_known_to_be_down_is_not_said_to_be(
    webs: tuple[Flask, Flask], own_valkey: OwnValkey
) -> None:
    def parts(app: Flask) -> dict[str, float]:
        return {
            labels[0][1]: value
            for (name, labels), value in scrape(app).items()
            if name == "record_service_up"
        }

    with Redis.from_url(own_valkey.url) as client:
        client.delete(heartbeats.REPORTING)
        heartbeats.report(client, heartbeats.Process("worker"))
        assert parts(webs[0]) == {
            **dict.fromkeys(("database", "database_writes", "redis", "worker"), 1),
            "scheduler": 0,
        }
        client.delete(heartbeats.REPORTING)
    with application(replace(of(webs[0]).settings, redis_url="redis://127.0.0.1:1")) as deaf:
        assert parts(deaf) == {"database": 1, "database_writes": 1, "redis": 0}


def test_a_scrape_proves_no_write_but_tells_what_readiness_keeps(
    webs: tuple[Flask, Flask], fresh_database: Database, owner: Engine
) -> None:
    one, _ = webs
    kept = of(one)
    with fresh_database.across_tenants() as session:
        key_registry.announce(session, MASTER_KEYS)
    kept.readiness = Readiness(kept.database, kept.settings, every=3_600)
    with owner.begin() as connection:
        connection.execute(text(COUNTED_PROOFS))
    for _ in range(3):
        assert scrape(one)["record_service_up", (("part", "database_writes"),)] == 1
    assert one.test_client().get("/readyz").status_code == 200
    with owner.begin() as connection:
        counted = connection.execute(text("SELECT last_value, is_called FROM proofs")).one()
    assert tuple(counted) == (1, True)


def test_without_the_database_it_says_that_and_no_figure(
    webs: tuple[Flask, Flask],
) -> None:
    nowhere = "postgresql+psycopg://nobody@127.0.0.1:1/none"
    with application(replace(of(webs[0]).settings, database_url=nowhere)) as alone:
        seen = scrape(alone)
    assert seen["record_service_up", (("part", "database"),)] == 0
    assert {name for name, _ in seen} == {"record_service_up", "record_service_release_info"}


def test_a_database_behind_this_release_is_not_up(webs: tuple[Flask, Flask], owner: Engine) -> None:
    with owner.begin() as connection:
        connection.execute(text("DELETE FROM alembic_version"))
        connection.execute(text("DROP TABLE counters"))
    assert scrape(webs[0])["record_service_up", (("part", "database"),)] == 0


def test_figures_of_another_release_are_left_out() -> None:
    claims = metrics.CLAIMS.total
    turns, seconds = metrics.TURNS.total, metrics.ATTEMPT_SECONDS
    written = exposition(
        [
            ("of_a_later_release_total", "[]", 1),
            (claims, "[]", 2),
            (claims, '["by whom"]', 3),
            (turns, "[]", 4),
            (turns, '["sent"]', 5),
            (seconds.bucket, '["timeout","0.7"]', 6),
            (seconds.bucket, '["timeout","1.0"]', 1),
            (seconds.bucket, '["timeout","1000.0"]', 1),
            (seconds.sum, '["timeout"]', 9.5),
        ],
        [],
    )
    seen = samples(written.decode())
    assert "of_a_later_release" not in written.decode()
    assert {key: value for key, value in seen.items() if key[0] == claims} == {(claims, ()): 2}
    assert {key: value for key, value in seen.items() if key[0] == turns} == {
        (turns, (("result", "sent"),)): 5
    }
    name, outcome = seconds.bucket, ("outcome", "timeout")
    upto = {float(labels[0][1]): value for (key, labels), value in seen.items() if key == name}
    assert (upto[0.5], upto[1.0], upto[15.0], upto[math.inf]) == (0, 7, 7, 8)
    assert seen[f"{seconds.name}_sum", (outcome,)] == 9.5


def test_every_family_is_described_once(webs: tuple[Flask, Flask]) -> None:
    token = {"Authorization": f"Bearer {TOKEN}"}
    written = webs[0].test_client().get("/metrics", headers=token).text
    described = [line.split()[2] for line in written.splitlines() if line.startswith("# TYPE")]
    assert len(described) == len(set(described))
    assert {each.total for each in metrics.COUNTERS} <= set(described)
    assert {each.name for each in metrics.HISTOGRAMS} <= set(described)
    assert all(family.documentation for family in text_string_to_metric_families(written))


def test_a_broken_audit_chain_is_counted(
    webs: tuple[Flask, Flask], fresh_database: Database, owner: Engine
) -> None:
    _, key = tenants.create(fresh_database, MASTER_KEYS, "broken into")
    with owner.begin() as connection:
        connection.execute(text("UPDATE audit_entries SET hash = decode(repeat('00', 32), 'hex')"))
    caller = Api(webs[0].test_client(), key)
    assert [caller.get("/v1/audit/verify").status_code for _ in range(2)] == [409, 409]
    assert scrape(webs[0])["record_service_audit_chain_broken_total", ()] == 2


def test_processes_their_release_and_missing_keys_are_shown(
    webs: tuple[Flask, Flask], fresh_database: Database, own_valkey: OwnValkey
) -> None:
    seen = scrape(webs[0])
    assert seen["record_service_release_info", (("version", VERSION),)] == 1
    assert seen["record_service_master_keys_missing", ()] == 0
    with fresh_database.across_tenants() as session:
        key_registry.announce(session, MasterKeys([bytes(32)]))
    other = Process("worker", "elsewhere", 7, "0.0.1", 5_000, pool_size=10, pool_in_use=3)
    # Set without an end: on a slow machine fifteen seconds are soon over.
    own_valkey.client.set("process:elsewhere", json.dumps(asdict(other)))
    own_valkey.client.sadd("processes", "process:elsewhere")
    seen = scrape(webs[1])
    assert seen["record_service_master_keys_missing", ()] == 1
    place = (("host", "elsewhere"), ("pid", "7"), ("process", "worker"))
    assert seen["record_service_process_info", (*place, ("version", "0.0.1"))] == 1
    assert seen["record_service_process_resident_memory_bytes", place] == 5_000
    assert seen["record_service_pool_size", place] == 10
    assert seen["record_service_pool_in_use", place] == 3
    assert ("record_service_scheduler_leader", place) not in seen
