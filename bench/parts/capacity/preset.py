"""The preset of docs/setup.md for a database of 20 connections and 512 MB for all processes.

One release, then two at once on one database, as a platform has them during a deployment. Each
takes findings from 16 clients as fast as it answers, and delivers them meanwhile.
"""

import itertools
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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

_LIMIT = 20
_LIMITS = {"connections at once": ("", _LIMIT), "memory of a release": (" MiB", 512)}
_CLIENTS = 16
_DONE_SECONDS = 300.0
_MIB = 1024 * 1024

_ROLE = "bench_preset"
_PRESET = re.compile(r"^DATABASE_CONNECTIONS=\d+ .+$", re.MULTILINE)

_SAMPLE_SECONDS = 0.02
# Adding memory up reads a file of each process, which takes milliseconds.
_SAMPLES_A_WEIGHING = 50


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Measure one release, then two at once."""
    with _role(lab) as password:
        for releases, words in ((1, "one release"), (2, "two releases at once")):
            with _deployed(lab, password, releases) as services:
                yield from _measure(lab, services, scale.findings, words)


def _measure(lab: Lab, services: Sequence[Service], count: int, words: str) -> Iterator[Figure]:
    tenants = [service.new_tenant() for service in services]
    webhooks = [tenant.webhook(lab.receiver.url()) for tenant in tenants]
    for service in services:
        # The bench's own connection would count.
        service.database.close()
    arrived = lab.receiver.count()
    plans = [tenant.findings(connections=_CLIENTS, count=count) for tenant in tenants]
    with _watched(lab, services) as most:
        tally = load.merge(lab.load.drive_each(plans))
        lab.receiver.wait_for(arrived + len(tally.answers), _DONE_SECONDS)
        closed = [
            tenant.wait_until_closed(webhook, _DONE_SECONDS)
            for tenant, webhook in zip(tenants, webhooks, strict=True)
        ]
    p99 = f"p99 {number(percentile(tally.latencies_ms, 99))} ms"
    delivered, every = sum(books.succeeded for books in closed), Reach(at_least=count * len(plans))
    refused = Reach(at_most=0)
    yield Figure(f"{words}: findings refused", tally.refused, "", None, refused, tally.refusal)
    yield Figure(f"{words}: findings, {_CLIENTS} clients each", tally.per_second, "/s", note=p99)
    yield Figure(f"{words}: delivered", delivered, "", None, every)
    for name, (unit, limit) in _LIMITS.items():
        yield Figure(f"{words}: most {name}", most[name], unit, None, Reach(at_most=limit))


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
def _watched(lab: Lab, services: Sequence[Service]) -> Iterator[dict[str, float]]:
    """Watch connections, and the memory of the heavier release, for the length of a `with`."""
    most, ended = dict.fromkeys(_LIMITS, 0.0), Event()
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(_watch, lab, services, most, ended)
        try:
            yield most
        finally:
            ended.set()
        watching.result()


def _watch(lab: Lab, services: Sequence[Service], most: dict[str, float], ended: Event) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
    pids = [[each.pid for each in service.running.values()] for service in services]
    with psycopg.connect(lab.postgres.admin_url, autocommit=True) as admin:
        for sample in itertools.count():
            (found,) = admin.execute(count, [_ROLE]).fetchone() or (0,)
            weight = max(map(resident_bytes, pids)) if sample % _SAMPLES_A_WEIGHING == 0 else 0
            for name, value in zip(_LIMITS, (found, weight / _MIB), strict=True):
                most[name] = max(most[name], value)
            if ended.wait(_SAMPLE_SECONDS):
                return
