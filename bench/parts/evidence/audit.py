"""The audit chain: entries verified and appended a second, those after the newest anchor.

Verification is all of `GET /v1/audit/verify`: the chain, and its anchors in the log. The bound of
appending is the least for a chain in PostgreSQL, on tables of the same shape: one transaction
of a row lock and two statements, by as many threads.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import psycopg

from app.core import tenants
from app.core.audit import chain
from app.core.callers import SYSTEM
from app.core.log.head_store import FileHead
from app.core.log.sequencer import Sequencer
from app.core.verification import anchored_heads
from app.core.verification.published_log import Trust
from app.core.verification.verifier import Asked, Verifier
from app.database import Database
from app.settings import Settings
from bench.datasets import chains
from bench.figures import Bound, Figure, Reach, median, percentile
from bench.lab import Lab, owner_url
from bench.scale import Scale

_PORTIONS = 10
_WRITERS = 8
_AFTER_ANCHOR = 999

_Append: TypeAlias = Callable[[], None]

_BARE = """
CREATE TABLE bare_heads (tenant_id uuid PRIMARY KEY, seq bigint NOT NULL, hash bytea NOT NULL);
CREATE TABLE bare_entries (LIKE audit_entries INCLUDING ALL);
GRANT ALL ON bare_heads, bare_entries TO PUBLIC;
"""


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Verify a long chain, from its newest anchor too, then append to one by eight writers."""
    with lab.migrated() as (settings, database):
        tenant_id, _ = tenants.create(database, settings.master_keys, "bench")
        head = FileHead(lab.folder / "audit-head")
        sequencer = Sequencer(database, settings.master_keys, "bench.test/log", head)
        bodies = chains.grow(
            settings, database, sequencer, tenant_id, scale.backlogs[-1], _PORTIONS
        )
        verifier = Verifier(database, settings.master_keys, head, Trust())
        yield from _verify(verifier, tenant_id, bodies)
        # Others' leaves behind the newest anchor: as many as are ever looked at.
        chains.add_leaves(database, anchored_heads.LOOK_BACK)
        sequencer.run()
        yield from _since_anchor(verifier, database, tenant_id, scale)
        yield from _append(settings, database, scale)


def _verify(verifier: Verifier, tenant_id: UUID, bodies: list[bytes]) -> Iterator[Figure]:
    verifier.verify(tenant_id, Asked(since_anchor=True))
    ours, cost, bound, memory = [], [], [], []
    entries = 0
    idle = _memory("VmRSS")
    for _ in range(3):
        bound.append(len(bodies) / _hashed(bodies))
        _forget_peak()
        began, spent = time.perf_counter(), time.process_time()
        entries = verifier.verify(tenant_id, Asked())["entries"]
        ours.append(entries / (time.perf_counter() - began))
        cost.append((time.process_time() - spent) / entries * 1e6)
        memory.append(_memory("VmHWM") - idle)
    yield Figure(
        f"entries verified, of {entries} in PostgreSQL",
        median(ours),
        "/s",
        Bound("hashlib over the same bytes", median(bound)),
        Reach(at_least=250_000),
        f"CPU of the verifier {median(cost):.2f} µs an entry, the log's leaves included",
    )
    yield Figure("memory of a verification", max(memory), " MiB", reach=Reach(at_most=64))


def _hashed(bodies: list[bytes]) -> float:
    began = time.perf_counter()
    for each in bodies:
        sha256(each).digest()
    return time.perf_counter() - began


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _memory(name: str) -> float:
    """Return the memory in use (VmRSS), or the peak of it (VmHWM), in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def _since_anchor(
    verifier: Verifier, database: Database, tenant_id: UUID, scale: Scale
) -> Iterator[Figure]:
    for _ in range(_AFTER_ANCHOR):
        _add(database, tenant_id)
    times = []
    report: dict[str, Any] = {}
    for _ in range(scale.samples):
        began = time.perf_counter()
        report = verifier.verify(tenant_id, Asked(since_anchor=True))
        times.append((time.perf_counter() - began) * 1000)
    read = report["log"]["size"] - report["leaves_read_from"]
    yield Figure(
        f"since=anchor, {report['unanchored_entries']} entries and {read} leaves behind it",
        median(times),
        " ms",
        reach=Reach(at_most=100),
        note=f"p95 {percentile(times, 95):.1f} ms",
    )


def _append(settings: Settings, database: Database, scale: Scale) -> Iterator[Figure]:
    url = settings.database_url.replace("+psycopg", "")
    with psycopg.connect(owner_url(settings)) as owner:
        owner.execute(_BARE)
    tenant_id, _ = tenants.create(database, settings.master_keys, "appended to")
    with psycopg.connect(url, autocommit=True) as made:
        made.execute("INSERT INTO bare_heads VALUES (%s, 0, %s)", (tenant_id, bytes(32)))
    body = chains.body(tenant_id, 1, bytes(32))
    ours, bound = [], []
    for _ in range(3):
        bound.append(_rate(scale.seconds, lambda: _bare_writer(url, tenant_id, body)))
        ours.append(_rate(scale.seconds, lambda: nullcontext(lambda: _add(database, tenant_id))))
    yield Figure(
        f"entries appended to one chain by {_WRITERS} writers",
        median(ours),
        "/s",
        Bound("a row lock and two statements", median(bound)),
        Reach(at_least=0.8, of_ratio=True),
    )


@contextmanager
def _bare_writer(url: str, tenant_id: UUID, body: bytes) -> Iterator[_Append]:
    """Yield what appends to tables of the same shape, and hashes nothing."""
    with psycopg.connect(url, autocommit=True) as connection:

        def append() -> None:
            with connection.transaction():
                cur = connection.execute(
                    "SELECT seq, hash FROM bare_heads WHERE tenant_id = %s FOR UPDATE",
                    (tenant_id,),
                )
                seq, digest = cur.fetchone() or (0, b"")
                connection.execute(
                    "INSERT INTO bare_entries"
                    " VALUES (%s, %s, %s, %s, %s, clock_timestamp(), %s, %s)",
                    (tenant_id, seq + 1, body, digest, "bench.do", "system", "1"),
                )
                connection.execute(
                    "UPDATE bare_heads SET seq = %s, hash = %s WHERE tenant_id = %s",
                    (seq + 1, digest, tenant_id),
                )

        yield append


def _add(database: Database, tenant_id: UUID) -> None:
    with database.transaction(tenant_id) as session:
        chain.append(
            session, tenant_id, SYSTEM, "bench.do", target=("bench", "1"), details={"n": 1}
        )


def _rate(seconds: float, writer: Callable[[], AbstractContextManager[_Append]]) -> float:
    """Return how many entries eight writers append together in a second."""
    until = time.monotonic() + seconds

    def work() -> int:
        count = 0
        with writer() as append:
            while time.monotonic() < until:
                append()
                count += 1
        return count

    began = time.monotonic()
    with ThreadPoolExecutor(_WRITERS) as pool:
        counts = [pool.submit(work) for _ in range(_WRITERS)]
    return sum(each.result() for each in counts) / (time.monotonic() - began)
