"""The transparency log as a service: leaves published a second, and how long proofs take.

The bound, in the same run and on the same leaves: a hash for each leaf and node, and one bulk
INSERT of them, the least that any log in PostgreSQL does. The CPU time of this process and of
PostgreSQL is measured too.
"""

import time
from collections.abc import Iterator
from hashlib import sha256
from random import Random

from app.core.log import proofs, tile_rows
from app.core.log.head_store import FileHead
from app.core.log.sequencer import BATCH, Sequencer
from app.database import Database, cursor
from app.ledger.tiles import ENTRIES, WIDTH, Tile
from bench.datasets import chains
from bench.figures import Bound, Figure, Reach, median, percentile
from bench.lab import Lab
from bench.processes import until
from bench.scale import Scale
from bench.service import Tenant

_SECONDS = 30.0


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Integrate until the tree is large, prove in it, then wait for records of a whole service."""
    with lab.migrated() as (settings, database):
        sequencer = Sequencer(
            database, settings.master_keys, "bench.test/log", FileHead(lab.folder / "head")
        )
        yield from _integrate(database, sequencer, scale)
        yield from _prove(database, scale)
        yield from _read(database, scale)
    yield from _wait(lab.service.new_tenant(), scale)


def _integrate(database: Database, sequencer: Sequencer, scale: Scale) -> Iterator[Figure]:
    sequencer.run()
    ours: list[float] = []
    cost: list[float] = []
    bound: list[float] = []
    batch = BATCH
    total = scale.backlogs[-1]
    for _ in range(-(-total // batch)):
        rows = chains.rows(batch)
        bound.append(batch / _least(database, rows))
        with database.across_tenants() as session:
            cursor(session).execute(chains.INSERT.format(table="log_leaves").encode(), rows)
        began, spent = time.perf_counter(), time.process_time()
        sequencer.run()
        ours.append(batch / (time.perf_counter() - began))
        cost.append((time.process_time() - spent) / batch * 1e6)
    for name, rates, bounds in (
        ("first", ours[:6], bound[:6]),
        (f"at {len(ours) * batch} leaves", ours[-6:], bound[-6:]),
    ):
        yield Figure(
            f"leaves integrated and published, {name}",
            median(rates),
            "/s",
            Bound("their hashes and one bulk INSERT", median(bounds)),
            Reach(at_least=10_000),
            f"CPU of the integrator {median(cost):.1f} µs a leaf",
        )


def _least(database: Database, rows: chains.Rows) -> float:
    """Return the seconds that hashing and inserting take, into a table that is the batch's own."""
    with database.across_tenants() as session:
        session.connection().exec_driver_sql(
            "CREATE TEMPORARY TABLE least (id uuid PRIMARY KEY, leaf_hash bytea, data bytea)"
            " ON COMMIT DROP"
        )
        began = time.perf_counter()
        node = bytes(65)
        for each in rows[2]:
            sha256(each).digest()
            sha256(node).digest()
        cursor(session).execute(chains.INSERT.format(table="least").encode(), rows)
        return time.perf_counter() - began


def _prove(database: Database, scale: Scale) -> Iterator[Figure]:
    rng = Random(1)
    with database.across_tenants() as session:
        last = proofs.published(session)
        size = last.checkpoint.size
        hashes = [
            proofs.inclusion(session, last, rng.randrange(size), size).leaf_hash
            for _ in range(scale.samples)
        ]
    single, between = [], []
    for leaf_hash in hashes:
        began = time.perf_counter()
        with database.across_tenants() as session:
            proofs.of_leaf(session, proofs.newest(session), leaf_hash)
        single.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        with database.across_tenants() as session:
            proofs.consistency(session, proofs.published(session), rng.randrange(1, size), size)
        between.append((time.perf_counter() - began) * 1000)
    for name, times in (("inclusion, by the leaf's hash", single), ("consistency", between)):
        note = f"p95 {percentile(times, 95):.1f} ms"
        yield Figure(f"proof of {name}, {size} leaves", median(times), " ms", note=note)


def _read(database: Database, scale: Scale) -> Iterator[Figure]:
    """Read full tiles and entry bundles anywhere in the log, and their stored rows alone."""
    rng = Random(3)
    with database.across_tenants() as session:
        size = proofs.published(session).checkpoint.size
    for name, level in (("tile", 0), ("entry bundle", ENTRIES)):
        proven, stored = [], []
        for _ in range(scale.samples):
            asked = Tile(level, rng.randrange(size // WIDTH))
            began = time.perf_counter()
            with database.across_tenants() as session:
                proofs.tile(session, proofs.published(session), asked.path)
            proven.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            with database.across_tenants() as session:
                tile_rows.read(session, proofs.published(session).generation, [asked.id])
            stored.append((time.perf_counter() - began) * 1000)
        yield Figure(
            f"{name} read and proven, {size} leaves",
            median(proven),
            " ms",
            Bound("its stored row", median(stored)),
            note=f"p95 {percentile(proven, 95):.1f} ms",
        )


def _seconds_to_proof(tenant: Tenant) -> float:
    began = time.perf_counter()
    path = f"/v1/records/{tenant.record()}/log-proof"
    until(lambda: tenant.answers(path), _SECONDS, "the record is proved")
    return time.perf_counter() - began


def _wait(tenant: Tenant, scale: Scale) -> Iterator[Figure]:
    """Time records from the POST to the first answer that proves them."""
    rng = Random(2)
    times = []
    for _ in range(scale.samples // 8):
        # Not in step with the clock, or all would wait alike.
        time.sleep(rng.random())
        times.append(_seconds_to_proof(tenant) * 1000)
    for percent in (50, 99):
        yield Figure(
            f"POST of a record to its proof, p{percent}",
            percentile(times, percent),
            " ms",
            reach=Reach(at_most=5_000),
        )
