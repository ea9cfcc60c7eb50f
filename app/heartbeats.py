"""Heartbeats in Redis: which roles are up, and what each process reports of itself.

Both expire. A role has one key, so one `MGET` answers whether any process of it is up; each process
has another for its figures in `/metrics`.
"""

import json
import os
import socket
from dataclasses import asdict, dataclass
from typing import Literal

from redis import Redis
from redis.client import Pipeline

from app.lib.process import resident_bytes
from app.settings import VERSION

Role = Literal["worker", "scheduler"]

ROLES: tuple[Role, ...] = ("worker", "scheduler")

# Two beats may be missed before a role counts as gone.
EVERY_SECONDS = 5.0
_LASTS_MS = 15_000
# Names the keys of the processes that report.
_REPORTING = "processes"


@dataclass(frozen=True, slots=True)
class Process:
    """A process's heartbeat: its release, its resident memory in bytes, and its connections.

    `pool_in_use` is the most connections at once since its last report; a scheduler has no pool,
    and it alone says whether it `leads`.
    """

    role: str
    host: str
    pid: int
    version: str
    memory: int
    pool_size: int | None = None
    pool_in_use: int | None = None
    leads: bool | None = None


def this_process(
    role: str,
    *,
    pool_size: int | None = None,
    pool_in_use: int | None = None,
    leads: bool | None = None,
) -> Process:
    """Return this process's report."""
    return Process(
        role,
        socket.gethostname(),
        os.getpid(),
        VERSION,
        resident_bytes(),
        pool_size,
        pool_in_use,
        leads,
    )


def key(role: Role) -> str:
    """Return the Redis key of a role's heartbeat."""
    return f"alive:{role}"


def beat(client: "Redis | Pipeline", role: Role, **details: int | str) -> None:
    """Write a heartbeat, with details for an operator who inspects Redis.

    Raises `redis.RedisError`.
    """
    written_by = {"host": socket.gethostname(), "pid": os.getpid(), **details}
    client.set(key(role), json.dumps(written_by), px=_LASTS_MS)


def presence(client: Redis) -> dict[Role, bool]:
    """Return for each role whether it sent a heartbeat within the last 15 seconds.

    Raises `redis.RedisError`.
    """
    signs = client.mget([key(role) for role in ROLES])
    return {role: sign is not None for role, sign in zip(ROLES, signs, strict=True)}


def report(client: Redis, process: Process) -> None:
    """Write a process's report, which expires after 15 seconds. Raises `redis.RedisError`."""
    name = f"process:{process.role}:{process.host}:{process.pid}"
    with client.pipeline(transaction=False) as pipe:
        pipe.set(name, json.dumps(asdict(process)), px=_LASTS_MS)
        pipe.sadd(_REPORTING, name)
        pipe.execute()


def processes(client: Redis) -> list[Process]:
    """Return the reports of the last 15 seconds; those that cannot be read are left out.

    Raises `redis.RedisError`.
    """
    names = sorted(client.smembers(_REPORTING))
    if not names:
        return []
    reports = dict(zip(names, client.mget(names), strict=True))
    gone = [name for name, sent in reports.items() if sent is None]
    if gone:
        client.srem(_REPORTING, *gone)
    return [each for each in map(_read, reports.values()) if each is not None]


def _read(sent: bytes | str | None) -> Process | None:
    try:
        return None if sent is None else Process(**json.loads(sent))
    except (TypeError, ValueError):
        # Of another release, with other fields: it runs for a while beside this one.
        return None
