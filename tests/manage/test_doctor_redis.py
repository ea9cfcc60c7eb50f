"""The doctor on Redis and the queue: each of its findings, brought about by the fault."""

from collections.abc import Callable
from uuid import UUID

import pytest

from app import clock, ids, queue
from app.core.callers import Caller, Role
from app.core.delivery import events
from app.core.delivery.events import NewEvent
from app.core.health.parts import State
from app.core.jobs import job_queue
from app.core.webhooks import webhooks
from app.database import Database
from tests.support.database.doctoring import Installation, keep_alive
from tests.support.faults import OwnValkey
from tests.support.servers.ports import own_port


@pytest.fixture
def ringing(here: Installation, own_valkey: OwnValkey) -> Installation:
    """Return the installation with an empty Redis."""
    here.change(redis_url=own_valkey.url)
    return here


def test_without_redis_it_says_what_does_not_start(here: Installation) -> None:
    assert "worker and scheduler do not start" in here.failing("redis")
    consumers, messages, rows = here.found("queue")["queue"]
    assert consumers.state is messages.state is State.NOT_CHECKED
    assert rows.state is State.OK


def test_a_redis_that_is_away_is_told_with_the_reason(
    ringing: Installation, own_valkey: OwnValkey
) -> None:
    assert ringing.found("redis")["redis"][0].text.startswith("Valkey ")
    for check in ("redis", "clock"):
        assert ringing.states(check) == {State.OK}
    with own_valkey.away():
        said = ringing.failing("redis")
        assert "refused" in said
        assert [each.text for each in ringing.found("queue")["queue"]][:2] == [
            "not checked: worker and scheduler: Redis does not answer",
            "not checked: messages: Redis does not answer",
        ]


@pytest.mark.parametrize(
    ("url", "why", "mend"),
    [
        ("redis://:wrong@127.0.0.1:{port}/0", "password", "as the provider shows it"),
        ("redis://127.0.0.1:{port}/0", "authenticated", "as the provider shows it"),
        ("redis://127.0.0.1:{free}/0", "refused", "start Redis"),
    ],
)
def test_a_wrong_address_is_told_with_the_reason(
    ringing: Installation, own_valkey: OwnValkey, url: str, why: str, mend: str
) -> None:
    known = own_valkey.client.connection_pool.connection_kwargs
    given = {"port": known["port"], "password": known["password"], "free": own_port()}
    ringing.change(redis_url=url.format(**given))
    said = ringing.failing("redis")
    assert why in said
    assert mend in said
    assert known["password"] not in said


def test_what_redis_may_drop_and_has_dropped_is_warned_of(
    ringing: Installation, own_valkey: OwnValkey
) -> None:
    client = own_valkey.client
    try:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "maxmemory-policy is allkeys-lru" in ringing.warned("redis")
        client.config_set("maxmemory", "3mb")
        for number in range(200):
            client.set(f"filler:{number}", b"x" * 50_000)
        warned = [each.text for each in ringing.found("redis")["redis"]]
        assert any("has evicted" in each for each in warned)
    finally:
        client.config_set("maxmemory", "0")
        client.config_set("maxmemory-policy", "noeviction")


def test_consumers_that_are_away_are_told_by_their_line_of_the_procfile(
    ringing: Installation, own_valkey: OwnValkey
) -> None:
    found = [each for each in ringing.found("queue")["queue"] if each.state is State.FAILED]
    assert [each.mend for each in found] == [
        "start the Procfile's `worker`, or read its last lines",
        "start the Procfile's `scheduler`, or read its last lines",
    ]
    keep_alive(own_valkey)
    assert ringing.states("queue") == {State.OK}
    own_valkey.client.rpush(queue.queue_key("jobs"), *range(1_001))
    assert "jobs 1001" in ringing.warned("queue")


def leave_delivery(here: Installation, database: Database, tenant_id: UUID) -> None:
    """Have one delivery that is due."""
    caller = Caller(tenant_id, ids.new(), Role.ADMIN, None, "test")
    with database.transaction(tenant_id) as session:
        webhooks.create(session, caller, here.settings, {"url": "http://127.0.0.1:9/"})
        events.emit(session, tenant_id, [NewEvent("finding.created", {}, clock.now())])
    here.run("UPDATE open_deliveries SET next_attempt_at = clock_timestamp() - interval '90 s'")


def leave_job(here: Installation, database: Database, tenant_id: UUID) -> None:
    """Have one job that was due a while ago."""
    with database.transaction(tenant_id) as session:
        job_queue.enqueue(session, tenant_id, kind="expire_bundles", args={}, dedupe_key=None)
    here.run("UPDATE jobs SET run_at = clock_timestamp() - interval '90 s'")


@pytest.mark.parametrize(
    ("late", "said"),
    [
        (leave_delivery, "1 webhooks have deliveries overdue"),
        (leave_job, "a job has been due"),
    ],
)
def test_what_is_overdue_in_the_database_is_told(
    ringing: Installation,
    own_valkey: OwnValkey,
    database_here: Database,
    tenant_id: UUID,
    late: Callable[[Installation, Database, UUID], None],
    said: str,
) -> None:
    keep_alive(own_valkey)
    late(ringing, database_here, tenant_id)
    assert said in ringing.failing("queue")
    if late is leave_job:
        ringing.run("UPDATE jobs SET status = 'dead', finished_at = clock_timestamp()")
        assert "1 jobs are dead" in ringing.warned("queue")
