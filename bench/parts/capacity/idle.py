"""What the idle service costs: Redis commands, SQL statements and processor time."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
import redis

from bench.figures import Figure, Reach
from bench.lab import Lab
from bench.processes import cpu_seconds
from bench.scale import Scale

# `/readyz` was asked until all was up: its state is renewed for fifteen seconds more.
_SETTLE_SECONDS = 20.0
_RELOAD_SECONDS = 0.5
# A statement that the server was sent, by either of its protocols.
_LOGGED = re.compile(rb"LOG:  (?:execute [^:]+|statement): \s*(\w+)")
_FRAMES = {b"BEGIN", b"COMMIT", b"ROLLBACK"}


def run(lab: Lab, scale: Scale) -> Iterator[Figure]:
    """Watch the whole service for some seconds."""
    seconds = scale.idle_seconds
    lab.service.wait_until_up()
    time.sleep(_SETTLE_SECONDS)
    with redis.Redis.from_url(lab.valkey.url) as client, _statements_logged(lab):
        log_begins = lab.postgres.log.stat().st_size
        commands, cpu = _commands(client), _cpu(lab)
        time.sleep(seconds)
        # One INFO of our own lies between the two looks.
        commands = _commands(client) - commands - 1
        used = {name: value - cpu[name] for name, value in _cpu(lab).items()}
        logged = lab.postgres.log.read_bytes()[log_begins:]
    yield Figure("Redis commands", commands / seconds, "/s", reach=Reach(at_most=20))
    yield _statements(logged, seconds)
    each = ", ".join(f"{name} {value / seconds:.2%}" for name, value in used.items())
    share = sum(used.values()) / seconds * 100
    yield Figure("CPU of all processes", share, " %", note=f"of one core: {each}")


def _statements(logged: bytes, seconds: float) -> Figure:
    statements = [word.upper() for word in _LOGGED.findall(logged)]
    work = [word for word in statements if word not in _FRAMES]
    return Figure(
        "SQL statements",
        len(work) / seconds,
        "/s",
        reach=Reach(at_most=5),
        note=f"with BEGIN and COMMIT {len(statements) / seconds:.1f}/s",
    )


def _commands(client: redis.Redis) -> int:
    """Return how many commands have been called since the server began, by clients and scripts."""
    stats = cast("dict[str, dict[str, Any]]", client.info("commandstats"))
    return sum(int(each["calls"]) for each in stats.values())


def _cpu(lab: Lab) -> dict[str, float]:
    pids = {name: process.pid for name, process in lab.service.running.items()}
    return {name: cpu_seconds([pid]) for name, pid in (pids | lab.store_pids()).items()}


@contextmanager
def _statements_logged(lab: Lab) -> Iterator[None]:
    """Have PostgreSQL write every statement to its log."""
    with psycopg.connect(lab.postgres.admin_url, autocommit=True) as admin:
        admin.execute("ALTER SYSTEM SET log_statement = 'all'")
        admin.execute("SELECT pg_reload_conf()")
        time.sleep(_RELOAD_SECONDS)
        try:
            yield
        finally:
            admin.execute("ALTER SYSTEM RESET log_statement")
            admin.execute("SELECT pg_reload_conf()")
