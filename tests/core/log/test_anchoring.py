"""Heads of chains in the log: each chain that has moved on, once, and what proves it."""

import json
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine

from app.core.anchoring import anchors, heads
from app.core.jobs import leases, steps
from app.core.jobs.steps import Step
from app.core.log.recovery import succession
from app.dev.tsa import KeyType, TimestampAuthority
from app.errors import LogDamaged, LogHalted
from app.ledger import checkpoints, leaves, merkle
from app.ledger.leaves import AuditHead
from app.ledger.notes import VerifierKey
from app.ledger.policy import Policy
from app.lib.crypto.timestamps import read_certificates
from app.models import NO_TENANT
from jobs.process.runtime import Runtime
from tests.support.evidence.anchoring import Place, new_place, put_stamp
from tests.support.evidence.logs import Killed
from tests.support.evidence.witnesses import Witness
from tests.support.secrets import MASTER_KEYS


@pytest.fixture
def place(log_runtime: Runtime, log_owner: Engine, tmp_path: Path) -> Iterator[Place]:
    with new_place(log_runtime, log_owner, tmp_path) as made:
        yield made


def check(anchor: dict[str, Any]) -> AuditHead:
    """Prove an anchor from nothing but itself; return its leaf."""
    proof = anchor["log_proof"]
    key = VerifierKey.parse(anchor["vkey"])
    found = checkpoints.read(proof["checkpoint"].encode(), key)
    data = b64decode(proof["leaf_data"])
    path = [bytes.fromhex(each) for each in proof["inclusion"]]
    assert found.size == proof["tree_size"]
    leaf = merkle.leaf_hash(data)
    merkle.verify_inclusion(leaf, proof["leaf_index"], found.size, path, found.root)
    parsed = leaves.parse(data)
    assert isinstance(parsed, AuditHead)
    assert (parsed.chain.hex(), parsed.seq, parsed.hash.hex(), parsed.at) == (
        anchor["chain"],
        anchor["seq"],
        anchor["hash"],
        anchor["at"],
    )
    return parsed


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


def test_an_anchor_is_pending_until_the_log_has_it_and_then_proves_itself(place: Place) -> None:
    tenant = place.tenant()
    place.anchor()
    (anchor,) = place.anchors(tenant)
    assert (anchor["log_proof"], anchor["vkey"], anchor["cosignatures"]) == (None, None, [])
    place.publish()
    check(place.anchors(tenant)[0])


def test_an_anchor_s_proof_is_of_the_earliest_checkpoint_that_covers_it(place: Place) -> None:
    tenant = place.tenant()
    place.grow(3)
    place.anchor()
    first = place.publish()
    for _ in range(3):
        place.append(tenant)
        place.anchor()
        place.publish()
    place.grow(300)
    found = place.anchors(tenant)
    sizes = [each["log_proof"]["tree_size"] for each in found]
    assert sizes == [first + 3, first + 2, first + 1, first]
    for each in found:
        check(each)


def test_two_tenants_chains_have_names_that_tell_nothing(place: Place) -> None:
    one, other = place.tenant(), place.tenant()
    place.anchor()
    place.publish()
    names = {place.anchors(each)[0]["chain"] for each in (one, other)}
    assert len(names) == 2
    said = json.dumps(place.anchors(one))
    assert one.hex not in said
    assert "ten_" not in said


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
        standing = anchors.standing(session, tenant)
    assert (standing.enabled, standing.disabled_since) == (False, None)


def test_while_the_log_is_halted_anchors_wait_and_it_is_said_since_when(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = place.tenant()
    place.grow()
    place.run("UPDATE log_tiles SET data = set_byte(data, 3, get_byte(data, 3) # 1)")
    place.anchor()
    with pytest.raises(LogHalted):
        place.publish()
    assert place.anchors(tenant)[0]["log_proof"] is None
    place.anchor()
    assert place.troubles() == [], "it may be a moment"
    monkeypatch.setattr("app.core.anchoring.monitor.LATE", timedelta(0))
    place.anchor()
    (trouble,) = place.troubles()
    assert (trouble.part, trouble.alarm) == ("log", False)
    assert LogDamaged.slug in trouble.detail
    place.run("UPDATE log_tiles SET data = set_byte(data, 3, get_byte(data, 3) # 1)")
    place.publish()
    place.anchor()
    assert place.troubles() == []
    check(place.anchors(tenant)[0])


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
    with place.owner.connect() as connection:
        oldest = connection.exec_driver_sql("SELECT min(at) FROM audit_entries").scalar_one()
    assert trouble.since == oldest
    place.retry()
    place.stamp()
    assert place.troubles() == []
    assert len(place.anchors(tenant)) == 1


def test_an_anchor_without_its_leaf_is_damage_and_not_pending(place: Place) -> None:
    tenant = place.tenant()
    place.anchor()
    place.publish()
    place.run("DELETE FROM log_leaves")
    with pytest.raises(LogDamaged):
        place.anchors(tenant)


def test_anchors_are_found_again_in_the_log_that_follows_another(place: Place) -> None:
    tenant = place.tenant()
    place.anchor()
    place.publish()
    before = place.anchors(tenant)[0]
    succession.succeed(place.world.keeper(), place.world.master_keys, force=True)
    place.publish()
    after = place.anchors(tenant)[0]
    assert after["vkey"] != before["vkey"]
    assert check(after) == check(before)


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


# A page takes so many statements, however many anchors it has.
MOST_STATEMENTS = 20


def test_a_page_of_anchors_takes_as_many_statements_as_one_anchor(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = TimestampAuthority(tmp_path / "tsa", KeyType.P256)
    tenant = place.tenant()
    for number in range(12):
        place.append(tenant)
        place.anchor()
        place.publish()
        if number % 4 == 3:
            put_stamp(place.owner, authority)
    place.set(tsa_ca_file=read_certificates(authority.ca_file.read_bytes()))
    witness = Witness("witness.test")
    policy = Policy.parse(f"witness w {witness.vkey}\nquorum w\n".encode())
    execute, sent = psycopg.Cursor.execute, []

    def counted(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        sent.append(query)
        return execute(self, query, *args, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    found = place.anchors(tenant, policy)
    assert len(sent) <= MOST_STATEMENTS, sent
    monkeypatch.undo()
    assert len(found) == 12
    assert [each["log_proof"]["tree_size"] for each in found] == [12] * 4 + [8] * 4 + [4] * 4
    for each in found:
        check(each)
