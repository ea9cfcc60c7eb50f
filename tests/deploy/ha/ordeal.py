"""Each part is killed while two callers post without pause, and everything accepted must arrive.

What is told of each: the longest time in which the service accepted nothing at all, the longest for
a caller that stays with one `web`, and the longest in which nothing arrived.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise

from dev import processes
from tests.deploy.command import heading, say
from tests.deploy.ha.cluster import Cluster
from tests.deploy.journey import tenant
from tests.deploy.site import ASK_AGAIN_SECONDS, Site, Variant
from tests.e2e.harness.books import Tenant
from tests.support.faults import until

_LOAD = 30
_WHOLE_SECONDS = 240.0

Fault = Callable[[Cluster, Site], AbstractContextManager[None]]
FAULTS: dict[str, tuple[str, Fault]] = {}


def _fault(words: str) -> Callable[[Callable[[Cluster, Site], Iterator[None]]], None]:
    """Name a fault, whose generator heals it after its `yield`."""

    def named(function: Callable[[Cluster, Site], Iterator[None]]) -> None:
        FAULTS[function.__name__] = (words, contextmanager(function))

    return named


@_fault("the standby's host: PostgreSQL and Patroni killed")
def standby(cluster: Cluster, _site: Site) -> Iterator[None]:
    """Without it the primary stands still until Patroni lets it go on alone."""
    machine = cluster.standby
    machine.kill("patroni")
    yield
    machine.start("patroni")


@_fault("PostgreSQL of the primary killed; Patroni restarts it")
def postgres(cluster: Cluster, _site: Site) -> Iterator[None]:
    """A crash of the server alone."""
    cluster.primary.kill_postgres()
    yield


@_fault("the primary's host: PostgreSQL and Patroni killed; the standby takes over")
def primary(cluster: Cluster, _site: Site) -> Iterator[None]:
    """The other host is the primary in the end."""
    machine = cluster.primary
    machine.kill("patroni")
    until(lambda: cluster.has_other_primary(machine), _WHOLE_SECONDS)
    yield
    machine.start("patroni")


@_fault("the primary's host cut off the network; the standby takes over")
def network(cluster: Cluster, _site: Site) -> Iterator[None]:
    """Nobody says goodbye: etcd, Sentinel and Redis of that host are away too."""
    machine = cluster.primary
    with machine.network.cut_off():
        until(lambda: cluster.has_other_primary(machine), _WHOLE_SECONDS)
        yield


@_fault("a switchover that an operator asks for")
def switchover(cluster: Cluster, _site: Site) -> Iterator[None]:
    """What an upgrade of PostgreSQL's host costs."""
    machine = cluster.primary
    cluster.switch_over()
    until(lambda: cluster.has_other_primary(machine), _WHOLE_SECONDS)
    yield


@_fault("a member of etcd killed")
def etcd(cluster: Cluster, _site: Site) -> Iterator[None]:
    """Two of three are a quorum."""
    machine = cluster.primary
    machine.kill("etcd")
    yield
    machine.start("etcd")


@_fault("HAProxy killed and started again")
def haproxy(cluster: Cluster, _site: Site) -> Iterator[None]:
    """The callers of the `web` with a list of hosts do not notice."""
    cluster.machines["c"].kill("haproxy")
    cluster.machines["c"].start("haproxy")
    yield


@_fault("PgBouncer killed and started again")
def pgbouncer(cluster: Cluster, _site: Site) -> Iterator[None]:
    """As a restart of it."""
    cluster.machines["c"].kill("pgbouncer")
    cluster.machines["c"].start("pgbouncer")
    yield


@_fault("the primary Redis killed; Sentinel promotes its replica")
def redis(cluster: Cluster, _site: Site) -> Iterator[None]:
    """Nothing that is accepted depends on it; deliveries wait for the sweep."""
    machine = cluster.redis_primary
    machine.kill("redis")
    until(lambda: cluster.has_other_redis(machine), _WHOLE_SECONDS)
    yield
    machine.start("redis")


@_fault("a Sentinel killed")
def sentinel(cluster: Cluster, _site: Site) -> Iterator[None]:
    """Two of three are a quorum; it is the first of REDIS_URL."""
    machine = cluster.machines["a"]
    machine.kill("sentinel")
    yield
    machine.start("sentinel")


@_fault("a web process killed and started again")
def web(_cluster: Cluster, site: Site) -> Iterator[None]:
    """The leader and its group."""
    site.kill("web-1")
    site.start("web-1")
    yield


@_fault("a worker killed and started again")
def worker(_cluster: Cluster, site: Site) -> Iterator[None]:
    """Its leases run out."""
    site.kill("worker-1")
    site.start("worker-1")
    yield


@_fault("the scheduler that holds the lock killed; the other takes over")
def scheduler(cluster: Cluster, site: Site) -> Iterator[None]:
    """The lock runs out after eleven seconds."""
    site.kill(cluster.leading_scheduler(site.processes()))
    yield
    for number in (1, 2):
        if f"scheduler-{number}" not in site.running:
            site.start(f"scheduler-{number}")


def ordeal(cluster: Cluster, chosen: Sequence[str]) -> None:
    """Deploy two of each process, and bring about each fault."""
    site = _site(cluster)
    site.make_database()
    say(site.release())
    try:
        site.start()
        site.wait_for()
        heading("| Fault | accepted nothing | one web | delivered nothing |")
        with tenant(site) as load:
            for name in chosen:
                words, fault = FAULTS[name]
                _suffered(cluster, site, load, words, fault)
    finally:
        for process in [*site.running]:
            processes.stop(site.running.pop(process), signal.SIGTERM)


def _site(cluster: Cluster) -> Site:
    """Two of each process: the first by way of PgBouncer and HAProxy, the second by the list."""
    variant = Variant("available", 0, two_roles=True, pooled=True)
    site = Site(cluster, variant, variant.name)
    urls = {
        name: cluster.database_url(role, site.database)
        for name, role in (("DATABASE_URL", site.role), ("DATABASE_ADMIN_URL", site.owner))
    }
    site.settings_of = {"2": urls}
    return site


def _suffered(
    cluster: Cluster,
    site: Site,
    load: Tenant,
    words: str,
    fault: Fault,
) -> None:
    """Bring a fault about under load; say the gaps, once all is whole and the books are closed."""
    until(cluster.is_whole, _WHOLE_SECONDS, pause=ASK_AGAIN_SECONDS)
    one, other = (load.traffic(url) for url in site.base_urls)
    with one, other:
        for each in (one, other):
            each.wait_for(_LOAD)
        began = time.monotonic()
        with fault(cluster, site):
            for each in (one, other):
                each.wait_for(_LOAD)
        ended = time.monotonic()
    until(cluster.is_whole, _WHOLE_SECONDS, pause=ASK_AGAIN_SECONDS)
    site.wait_for()
    load.close_books(one.accepted + other.accepted)
    arrived = [at for _, each in load.lanes[:1] for at in each.findings.values()]
    figures = (
        _gap([*one.accepted_at, *other.accepted_at], began, ended),
        max(_gap(each.accepted_at, began, ended) for each in (one, other)),
        _gap(arrived, began, ended),
    )
    say(f"| {words} | {' | '.join(f'{each:.1f} s' for each in figures)} |")


def _gap(moments: Sequence[float], began: float, ended: float) -> float:
    """Return the longest time between two moments, of those from `began` on."""
    seen = sorted(moments)
    before = [at for at in seen if at < began][-1:]
    return max(
        (
            later - earlier
            for earlier, later in pairwise([*before, *(a for a in seen if a >= began)])
        ),
        default=ended - began,
    )
