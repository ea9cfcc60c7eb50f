"""Heads are anchored once each; what is not anchored is told since when."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest
import structlog

from app.core.anchoring import anchors, heads
from app.core.jobs import leases, steps
from app.core.jobs.steps import Step
from app.models import NO_TENANT
from dev.tsa import TimestampAuthority
from jobs.actors import ticks
from tests.support.database.plans import explained, rows_met
from tests.support.evidence.anchoring import Place
from tests.support.evidence.logs import Killed
from tests.support.secrets import MASTER_KEYS


def test_each_chain_that_moved_on_is_anchored_once(place: Place) -> None:
    made = [place.tenant() for _ in range(3)]
    place.anchor()
    place.anchor()
    assert place.count("audit_anchors") == place.count("log_leaves") == 3
    place.append(made[1])
    place.anchor()
    assert [each["seq"] for each in place.anchors(made[1])] == [3, 2]
    assert [each["seq"] for each in place.anchors(made[0])] == [2]
    assert len(place.jobs()) == 1, "a clock's job is one row, however often it ran"


def test_many_tenants_are_walked_in_steps(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MOST_TENANTS", 2)
    for _ in range(5):
        place.tenant()
    place.anchor()
    assert place.count("audit_anchors") == 5
    (job,) = place.jobs()
    assert (job.status, json.loads(job.progress or "")) == ("succeeded", {"anchored": 5})


def test_two_runs_at_once_anchor_each_head_once(place: Place) -> None:
    for _ in range(20):
        place.tenant()
    with place.database.across_tenants() as session:
        job = heads.enqueue_due(session)
    assert job is not None

    def run(_: int) -> Any:
        with place.database.across_tenants() as session:
            return heads.step(MASTER_KEYS, session, NO_TENANT, job)

    with ThreadPoolExecutor(4) as pool:
        steps: list[Step] = list(pool.map(run, range(4)))
    assert sum(step.progress["anchored"] for step in steps) == 20
    assert place.count("audit_anchors") == place.count("log_leaves") == 20


def test_a_run_that_is_killed_leaves_all_of_a_step_or_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "MOST_TENANTS", 2)
    for _ in range(5):
        place.tenant()
    with place.database.across_tenants() as session:
        job = heads.enqueue_due(session)
    assert job is not None
    with place.database.across_tenants() as session:
        claimed = leases.claim(session, NO_TENANT, job.id)
        assert claimed is not None
        steps.advance(session, claimed, heads.step(MASTER_KEYS, session, NO_TENANT, claimed))

    def die_before_the_commit() -> None:
        with place.database.across_tenants() as session:
            claimed = leases.claim(session, NO_TENANT, job.id)
            assert claimed is not None
            heads.step(MASTER_KEYS, session, NO_TENANT, claimed)
            raise Killed

    with pytest.raises(Killed):
        die_before_the_commit()
    assert place.count("audit_anchors") == place.count("log_leaves") == 2
    place.work()
    assert place.count("audit_anchors") == place.count("log_leaves") == 5


def test_anchoring_stops_where_it_is_switched_off_and_goes_on_later(place: Place) -> None:
    tenant, other = place.tenant(), place.tenant()
    place.anchor()
    place.run("UPDATE tenants SET anchoring_enabled = false WHERE id = :id", id=tenant)
    place.append(tenant)
    place.append(other)
    place.anchor()
    assert [len(place.anchors(each)) for each in (tenant, other)] == [1, 2]
    place.run("UPDATE tenants SET anchoring_enabled = true WHERE id = :id", id=tenant)
    place.anchor()
    assert [each["seq"] for each in place.anchors(tenant)] == [3, 2]


def test_switched_off_by_no_caller_there_is_no_entry_that_says_since_when(place: Place) -> None:
    tenant = place.tenant()
    place.run("UPDATE tenants SET anchoring_enabled = false WHERE id = :id", id=tenant)
    with place.database.transaction(tenant) as session:
        state = anchors.state_of(session, tenant)
    assert (state.enabled, state.disabled_since) == (False, None)


def test_heads_that_are_not_anchored_are_said_since_when_and_why(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = place.tenant()
    with monkeypatch.context() as patched:
        patched.setattr("app.core.anchoring.heads._ADD", "SELECT 1 / 0")
        place.anchor()
        place.stamp()
        assert place.troubles() == [], "the next tick may still do it"
        place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
        place.stamp()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == ("heads", False)
    assert "inside the service" in trouble.detail
    assert trouble.since == place.scalar("SELECT min(at) FROM audit_entries")
    place.retry()
    place.stamp()
    assert place.troubles() == []
    assert len(place.anchors(tenant)) == 1


@pytest.mark.toolbox
def test_of_many_chains_the_changed_are_found_by_one_look_at_each(
    place: Place,
) -> None:
    place.run("""
        INSERT INTO tenants (id, name)
        SELECT overlay(gen_random_uuid()::text placing '7' from 15)::uuid, 'one of many'
          FROM generate_series(1, 500);
        INSERT INTO audit_heads (tenant_id, seq, hash) SELECT id, 7, sha256('x') FROM tenants;
        INSERT INTO audit_anchors (tenant_id, seq, hash, at, leaf_hash)
        SELECT id, n, sha256('x'), now(), sha256('y') FROM tenants, generate_series(1, 7) AS n;
        ANALYZE tenants, audit_heads, audit_anchors;
    """)
    tenant = place.tenant()
    place.anchor()
    assert len(place.anchors(tenant)) == 1
    with place.owner.connect() as connection:
        plan = explained(connection, heads._DUE, {"after": UUID(int=0), "most": 500})
    # The newest anchor of each, by the index, of thousands.
    read = [each for each in plan if each.get("Relation Name", "").startswith("audit_anchors")]
    assert read
    assert rows_met(read) < 600, plan


# What somebody with the database can do to every job in one statement.
PUT_OFF = """
UPDATE jobs SET finished_at = NULL, status = 'queued', error = NULL, run_at = '2099-01-01'
"""


def test_heads_whose_job_was_put_off_are_told_by_the_oldest_entry(place: Place) -> None:
    tenant = place.tenant()
    place.anchor()
    place.append(tenant)
    place.run(PUT_OFF)
    place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
    place.anchor()
    place.stamp()
    assert [each.part for each in place.troubles()] == ["heads"]


def test_an_anchor_that_was_made_up_keeps_no_head_from_being_anchored(place: Place) -> None:
    tenant = place.tenant()
    made_up = "INSERT INTO audit_anchors SELECT id, 99, sha256('x'), now(), sha256('y')"
    place.run(f"{made_up} FROM tenants")
    place.anchor()
    assert place.count("log_leaves") == 1
    place.append(tenant)
    place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
    a_minute_later(place)
    place.stamp()
    assert [each.part for each in place.troubles()] == ["heads"]


def test_heads_without_an_anchoring_job_are_told_by_the_oldest_entry(place: Place) -> None:
    place.tenant()
    place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "The clock does not ask for it" in trouble.detail
    ticks.anchor_audit(place.runtime)
    a_minute_later(place)
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "No worker runs" in trouble.detail
    place.run("UPDATE jobs SET status = 'succeeded', finished_at = now() WHERE kind LIKE 'anchor%'")
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "audit_chain_not_sealed" in trouble.detail
    place.anchor()
    place.stamp()
    assert place.troubles() == []


@pytest.mark.parametrize("first", [ticks.anchor_audit, ticks.stamp_checkpoint])
def test_heads_that_a_standstill_kept_waiting_are_asked_for_before_they_are_told(
    place: Place, first: Callable[..., None]
) -> None:
    """The clock rings at once what it missed: both ticks come together, in either order."""
    tenant = place.tenant()
    place.anchor()
    place.append(tenant)
    place.run("UPDATE audit_entries SET at = at - interval '8 hours'")
    place.run("UPDATE jobs SET run_at = run_at - interval '8 hours', finished_at = run_at")
    for each in (first, ticks.anchor_audit, ticks.stamp_checkpoint):
        each(place.runtime)
        assert place.troubles() == []
    a_minute_later(place)
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "No worker runs" in trouble.detail
    place.work()
    ticks.stamp_checkpoint(place.runtime)
    assert place.troubles() == []


def test_what_is_not_to_be_anchored_is_no_trouble(place: Place) -> None:
    tenant = place.tenant()
    place.run("UPDATE audit_entries SET at = at - interval '16 minutes'")
    place.run("UPDATE tenants SET anchoring_enabled = false WHERE id = :id", id=tenant)
    place.stamp()
    assert place.troubles() == []


def test_a_stamp_whose_job_was_put_off_is_told_by_the_checkpoints(
    place: Place, authority: TimestampAuthority
) -> None:
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.grow()
        place.stamp()
        place.run(PUT_OFF)
        place.grow()
        place.overdue()
        place.stamp()
    assert [each.part for each in place.troubles()] == ["timestamps"]


def test_that_no_stamp_came_is_told_by_the_checkpoints(
    place: Place, authority: TimestampAuthority
) -> None:
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.grow()
        place.overdue()
        assert place.troubles() == [], "nobody was asked before"
        ticks.stamp_checkpoint(place.runtime)
        (trouble,) = place.troubles()
        assert (trouble.part, "No worker" in trouble.detail) == ("timestamps", True)
        query = "SELECT min(published_at) FROM checkpoints WHERE size > 0"
        assert trouble.since == place.scalar(query)
        place.work()
    assert place.troubles() == []


def test_a_standstill_is_no_trouble_of_those_who_were_not_asked(
    place: Place, authority: TimestampAuthority
) -> None:
    """Nor is an authority that is named again after a pause, which looks just the same."""
    with authority:
        place.stamped_by(authority.url, authority.ca_file)
        place.grow()
        place.stamp()
        place.grow()
        stand_still(place)
        with structlog.testing.capture_logs() as lines:
            ticks.stamp_checkpoint(place.runtime)
            assert place.troubles() == []
            place.work()
            ticks.stamp_checkpoint(place.runtime)
    assert place.troubles() == []
    assert [each for each in lines if each["event"] == "unanchored"] == []


def test_a_standstill_is_none_of_a_job_that_it_stopped_in_its_tries(
    place: Place, authority: TimestampAuthority
) -> None:
    place.stamped_by("http://127.0.0.1:1/", authority.ca_file)
    place.grow()
    place.stamp()
    assert [each.status for each in place.jobs()] == ["retrying"]
    stand_still(place)
    ticks.stamp_checkpoint(place.runtime)
    assert place.troubles() == []
    ticks.stamp_checkpoint(place.runtime)
    (trouble,) = place.troubles()
    assert "No worker" in trouble.detail, "it was asked for ten minutes ago"


def test_jobs_that_end_and_leave_nothing_are_told_as_such(
    place: Place, authority: TimestampAuthority
) -> None:
    """A worker that was not given TSA_URL has nothing to do."""
    place.stamped_by("http://127.0.0.1:1/", authority.ca_file)
    asks = place.runtime
    place.grow()
    ticks.stamp_checkpoint(asks)
    place.set(tsa_url=None)
    place.work()
    assert [each.status for each in place.jobs()] == ["succeeded"]
    place.set(tsa_url=asks.settings.tsa_url)
    place.overdue()
    (trouble,) = place.troubles()
    assert "nothing that holds is stored" in trouble.detail
    assert "No worker" not in trouble.detail


def a_minute_later(place: Place) -> None:
    """Let the time pass that lies between the two ticks."""
    place.run("UPDATE jobs SET run_at = run_at - interval '1 minute'")


def stand_still(place: Place) -> None:
    """Let eight hours pass in which nothing runs."""
    place.run("UPDATE checkpoints SET published_at = published_at - interval '8 hours'")
    place.run(
        "UPDATE jobs SET run_at = run_at - interval '8 hours',"
        " finished_at = finished_at - interval '8 hours', args = jsonb_set(args::jsonb,"
        " '{asked_at}', to_jsonb((args::jsonb ->> 'asked_at')::timestamptz - interval '8 hours'))"
    )
