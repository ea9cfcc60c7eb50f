"""Heads of chains go into the log: each chain that has moved on, once, in steps."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.core.anchoring import anchors, heads
from app.core.jobs import leases, steps
from app.core.jobs.steps import Step
from app.models import NO_TENANT
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


def test_of_two_thousand_chains_the_changed_are_found_by_one_look_at_each(
    place: Place,
) -> None:
    place.run("""
        INSERT INTO tenants (id, name)
        SELECT overlay(gen_random_uuid()::text placing '7' from 15)::uuid, 'one of many'
          FROM generate_series(1, 2000);
        INSERT INTO audit_heads (tenant_id, seq, hash) SELECT id, 7, sha256('x') FROM tenants;
        INSERT INTO audit_anchors (tenant_id, seq, hash, at, leaf_hash)
        SELECT id, n, sha256('x'), now(), sha256('y') FROM tenants, generate_series(1, 7) AS n;
        ANALYZE tenants, audit_heads, audit_anchors;
    """)
    tenant = place.tenant()
    place.anchor()
    assert len(place.anchors(tenant)) == 1
    with place.owner.connect() as connection:
        plan = connection.exec_driver_sql(
            "EXPLAIN (ANALYZE, FORMAT JSON) "
            + heads._DUE.replace("%(after)s", "'00000000-0000-0000-0000-000000000000'").replace(
                "%(most)s", "500"
            )
        ).scalar_one()
    read = [
        (node["Node Type"], node["Actual Rows"] * node["Actual Loops"])
        for node in nodes(plan[0]["Plan"])
        if node.get("Relation Name", "").startswith("audit_anchors")
    ]
    # The newest anchor of each, by the index, of fourteen thousand.
    assert read
    assert all("Index" in kind for kind, _ in read), plan
    assert sum(rows for _, rows in read) < 2_200


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a plan's nodes."""
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)
