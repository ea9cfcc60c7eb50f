"""What watching costs beside many tenants that rest: the gauges, the sweep, the log's heads.

No query of these may read what rests, so the bound is the same query beside few.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import psycopg
from sqlalchemy.orm import Session

from app.core.anchoring import heads, monitor
from app.core.delivery import sweeping
from app.core.health import gauges
from app.database import Database
from app.settings import Settings
from bench.figures import Bound, Figure, Reach, p95, percentile
from bench.lab import Lab, owner_url
from bench.pace import milliseconds
from bench.scale import Scale
from jobs.actors.sweep import OTHERS

_TENANTS = (1_000, 50_000, 200_000)
# Each with a webhook that never had anything to send, and a chain that is anchored.
_FILL = """
SET session_replication_role = replica;
CREATE TEMP TABLE fresh AS
SELECT gen_random_uuid() AS id, sha256(n::text::bytea) AS hash FROM generate_series(1, {n}) AS n;
INSERT INTO tenants (id, name, chain_salt, chain_seal) SELECT id, 'one', hash, '' FROM fresh;
INSERT INTO audit_heads (tenant_id, seq, hash, anchored) SELECT id, 1, hash, 1 FROM fresh;
INSERT INTO audit_entries (tenant_id, seq, body, hash, action, at, actor, target)
SELECT id, 1, '', hash, 'tenant.create', now(), 'a', 't' FROM fresh;
INSERT INTO audit_anchors (tenant_id, seq, hash, at, leaf_hash)
SELECT id, 1, hash, now(), hash FROM fresh;
INSERT INTO webhooks (tenant_id, id, url, max_in_flight, status, sealed_secrets, sealed_target)
SELECT id, id, 'http://127.0.0.1:9/', 16, 'enabled', '', '' FROM fresh;
INSERT INTO webhook_counts SELECT 'enabled', 0, count(*), count(*) FROM fresh;
INSERT INTO webhook_lanes (tenant_id, id, webhook_id) SELECT id, id, id FROM fresh;
INSERT INTO lanes (tenant_id, webhook_id) SELECT id, id FROM fresh;
"""


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Time each query beside few tenants, then beside more."""
    least: dict[str, float] = {}
    for size in _TENANTS:
        with lab.migrated() as (settings, database):
            with psycopg.connect(owner_url(settings), autocommit=True) as owner:
                owner.execute(_FILL.format(n=size).encode())
                owner.execute("VACUUM ANALYZE")
            for name, query in _queries(settings).items():
                answer = partial(_answer, database, query)
                times = [milliseconds(answer) for _ in range(scale.samples)]
                bound = Bound(
                    f"beside {_TENANTS[0]}", least.setdefault(name, percentile(times, 95))
                )
                yield p95(f"{name}, {size} tenants", times, bound, Reach(at_most=50))


def _answer(database: Database, query: Callable[[Session], Any]) -> None:
    with database.across_tenants(scans=False) as session:
        query(session)


def _queries(settings: Settings) -> Mapping[str, Callable[[Session], Any]]:
    def metrics(session: Session) -> None:
        for read in gauges.OF_DATABASE:
            list(read(session, settings))

    def sweep(session: Session) -> None:
        sweeping.wake(session)
        sweeping.due(session, OTHERS)

    def anchoring(session: Session) -> None:
        heads.enqueue_due(session)
        monitor.watch_heads(session)

    return {"all gauges": metrics, "the sweep": sweep, "heads to anchor": anchoring}
