"""The preset of docs/setup.md for a database of 20 connections and 512 MB for all processes.

One release, then two at once on one database, as a platform has them during a deployment. Each
takes findings from 16 clients as fast as it answers, and delivers them meanwhile.
"""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from threading import Event

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from bench.figures import Figure, Reach, number, percentile
from bench.lab import Lab
from bench.processes import ROOT, BenchError, resident_bytes
from bench.scale import Scale
from bench.service import Service
from bench.traffic import load
from bench.traffic.load import Tally

_LIMIT = 20
_MIB_FOR_ALL = 512
_CLIENTS = 16
_DONE_SECONDS = 300.0
_MIB = 1024 * 1024

_ROLE = "bench_preset"
_PRESET = re.compile(r"^DATABASE_CONNECTIONS=\d+ .+$", re.MULTILINE)
_REFUSED = b"too many connections for role"

_SAMPLE_SECONDS = 0.02
# Adding memory up reads a file of each process, which takes milliseconds.
_SAMPLES_A_WEIGHING = 50


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure one release, then two at once."""
    with _role(lab) as password:
        for releases, words in ((1, "one release"), (2, "two releases at once")):
            with _deployed(lab, password, releases) as services:
                yield from _measure(lab, services, scale.findings, words)


@dataclass(frozen=True)
class _Weight:
    """The memory of one release, in MiB; shared pages by share, by process."""

    pss: Mapping[str, float]
    rss: float

    @property
    def total(self) -> float:
        return sum(self.pss.values())


@dataclass
class _Seen:
    """The most that was seen at once."""

    connections: int = 0
    weight: _Weight = field(default_factory=lambda: _Weight({}, 0.0))


def _measure(lab: Lab, services: Sequence[Service], count: int, words: str) -> Iterator[Figure]:
    tenants = [service.new_tenant() for service in services]
    webhooks = [tenant.webhook(lab.receiver.url()) for tenant in tenants]
    for service in services:
        # The bench's own connection would count.
        service.database.close()
    log_begins, arrived = lab.postgres.log.stat().st_size, lab.receiver.count()
    plans = [tenant.findings(connections=_CLIENTS, count=count) for tenant in tenants]
    with _watched(lab, services) as seen:
        tally = load.merge(lab.load.drive_each(plans))
        lab.receiver.wait_for(arrived + len(tally.answers), _DONE_SECONDS)
        closed = [
            tenant.wait_until_closed(webhook, _DONE_SECONDS)
            for tenant, webhook in zip(tenants, webhooks, strict=True)
        ]
    refused = lab.postgres.log.read_bytes()[log_begins:].count(_REFUSED)
    delivered = sum(books.succeeded for books in closed)
    for figure in (
        *_answers(tally),
        Figure("delivered", delivered, "", reach=Reach(at_least=count * len(plans))),
        *_taken(seen, refused),
    ):
        yield replace(figure, name=f"{words}: {figure.name}")


def _answers(tally: Tally) -> Iterator[Figure]:
    name = "findings refused (503, or anything but 201)"
    yield Figure(name, tally.refused, "", reach=Reach(at_most=0), note=tally.refusal)
    p99 = f"p99 {number(percentile(tally.latencies_ms, 99))} ms"
    yield Figure(
        f"findings, together ({_CLIENTS} clients a release)",
        tally.per_second,
        "/s",
        note=p99,
    )


def _taken(seen: _Seen, refused: int) -> Iterator[Figure]:
    yield Figure(
        "most connections at once",
        seen.connections,
        "",
        reach=Reach(at_most=_LIMIT),
        note=f"the server refused {refused}",
    )
    each = ", ".join(f"{role} {number(mib)}" for role, mib in seen.weight.pss.items())
    yield Figure(
        "most memory of a release, PSS",
        seen.weight.total,
        " MiB",
        reach=Reach(at_most=_MIB_FOR_ALL),
        note=f"{each}; RSS {number(seen.weight.rss)} MiB",
    )


@contextmanager
def _role(lab: Lab) -> Iterator[str]:
    """Make a role with the limit, and drop it in the end; yield its password."""
    password = secrets.token_hex(24)
    role = sql.Identifier(_ROLE)
    with psycopg.connect(lab.postgres.admin_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} CONNECTION LIMIT {}").format(
                role, sql.Literal(password), sql.Literal(_LIMIT)
            )
        )
        try:
            yield password
        finally:
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


@contextmanager
def _deployed(lab: Lab, password: str, releases: int) -> Iterator[list[Service]]:
    """Run releases by the preset, with `DATABASE_URL` alone: the role owns an empty database."""
    with lab.database() as urls, ExitStack() as stack:
        url = make_url(urls.service).set(username=_ROLE, password=password)
        with psycopg.connect(lab.postgres.admin_url, autocommit=True) as admin:
            admin.execute(
                sql.SQL("ALTER DATABASE {} OWNER TO {}").format(
                    sql.Identifier(url.database or ""), sql.Identifier(_ROLE)
                )
            )
        environ = {
            **_preset(),
            "DATABASE_URL": url.render_as_string(hide_password=False),
            "DATABASE_ADMIN_URL": "",
            "DATABASE_PREPARE_THRESHOLD": "",
            "REDIS_URL": lab.redis_url(releases),
        }
        services = []
        for _ in range(releases):
            service = Service(lab, environ)
            stack.callback(service.stop)
            service.start()
            services.append(service)
        yield services


def _preset() -> dict[str, str]:
    """Read the preset as people are told it."""
    found = _PRESET.search((ROOT / "docs" / "setup.md").read_text("utf-8"))
    if found is None:
        raise BenchError("docs/setup.md has no preset")
    return dict(setting.split("=", 1) for setting in found[0].split())


@contextmanager
def _watched(lab: Lab, services: Sequence[Service]) -> Iterator[_Seen]:
    """Watch connections and memory for the length of a `with`."""
    seen, ended = _Seen(), Event()
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(_watch, lab, services, seen, ended)
        try:
            yield seen
        finally:
            ended.set()
        watching.result()


def _watch(lab: Lab, services: Sequence[Service], seen: _Seen, ended: Event) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
    samples = 0
    with psycopg.connect(lab.postgres.admin_url, autocommit=True) as admin:
        while not ended.is_set():
            (found,) = admin.execute(count, [_ROLE]).fetchone() or (0,)
            seen.connections = max(seen.connections, found)
            if samples % _SAMPLES_A_WEIGHING == 0:
                heaviest = max(map(_weight, services), key=lambda weight: weight.total)
                seen.weight = max(seen.weight, heaviest, key=lambda weight: weight.total)
            samples += 1
            ended.wait(_SAMPLE_SECONDS)


def _weight(service: Service) -> _Weight:
    pids = {role: process.pid for role, process in service.running.items()}
    pss = {role: resident_bytes([pid]) / _MIB for role, pid in pids.items()}
    return _Weight(pss, resident_bytes(pids.values(), "Rss") / _MIB)
