"""What each part of the service takes at a rate, and at ten times that: cores, commits, WAL.

Findings are posted one by one, when they are due, and delivered to one webhook meanwhile.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from bench import processes
from bench.figures import Figure
from bench.lab import Lab
from bench.scale import Scale

_CONNECTIONS = 16
_RATES = (6.0, 60.0, 600.0)
_SECONDS = 10.0
_CLOSED_SECONDS = 60.0
_STATE = """
SELECT xact_commit::float, pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float
  FROM pg_stat_database WHERE datname = current_database()
"""


@dataclass(frozen=True)
class _Moment:
    at: float
    cores: dict[str, float]
    commits: float
    wal: float


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure each rate from the first POST until the last delivery is counted."""
    for rate in _RATES:
        tenant = lab.service.new_tenant()
        webhook = tenant.webhook(lab.receiver.url("/stamp"))
        before = _moment(lab)
        plan = tenant.findings(connections=_CONNECTIONS, rate=rate, seconds=_SECONDS)
        count = len(tenant.post(plan).answers)
        tenant.wait_until_closed(webhook, _CLOSED_SECONDS)
        after = _moment(lab)
        took = after.at - before.at
        for part, used in after.cores.items():
            cores = (used - before.cores[part]) / took
            note = f"{(used - before.cores[part]) / count * 1e6:.0f} µs a finding"
            yield Figure(f"{count / took:.0f}/s: {part}", cores, " cores", note=note)
        commits = (after.commits - before.commits) / took
        yield Figure(f"{count / took:.0f}/s: commits", commits, "/s")
        wal = (after.wal - before.wal) / count
        yield Figure(f"{count / took:.0f}/s: WAL a finding", wal, " B")
        tenant.ask("DELETE", webhook)


def _moment(lab: Lab) -> _Moment:
    pids = lab.store_pids() | {name: each.pid for name, each in lab.service.running.items()}
    cores = {name: processes.cpu_seconds([pid]) for name, pid in pids.items()}
    with psycopg.connect(lab.environ["DATABASE_ADMIN_URL"]) as connection:
        ((commits, wal),) = connection.execute(_STATE).fetchall()
    return _Moment(time.monotonic(), cores, commits, wal)
