"""Heartbeats in Redis: what each process reports of itself, which expires after 15 seconds.

Who reports is up. Nothing here catches `redis.RedisError`.
"""

import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from redis import Redis

from app.lib.process import resident_bytes
from app.settings import VERSION

Role = Literal["worker", "scheduler"]

ROLES: tuple[Role, ...] = ("worker", "scheduler")

# Two may be missed before a process counts as gone.
EVERY_SECONDS = 5.0
_LASTS_MS = 15_000
# Names the keys of the processes that report.
REPORTING = "processes"


@dataclass(frozen=True, slots=True)
class Process:
    """A process's report, by default this one's: release, resident bytes, connections.

    `pool_in_use` is the most connections at once since its last report; a scheduler has no pool,
    and it alone says whether it `leads`.
    """

    role: str
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    version: str = VERSION
    memory: int = field(default_factory=resident_bytes)
    pool_size: int | None = None
    pool_in_use: int | None = None
    leads: bool | None = None


def report(client: Redis, process: Process) -> None:
    """Write a process's report."""
    name = f"process:{process.role}:{process.host}:{process.pid}"
    with client.pipeline(transaction=False) as pipe:
        pipe.set(name, json.dumps(asdict(process)), px=_LASTS_MS)
        pipe.sadd(REPORTING, name)
        pipe.execute()


# Atomic: a process that reports again meanwhile stays.
_FORGET = """
for _, name in ipairs(ARGV) do
  if redis.call("EXISTS", name) == 0 then redis.call("SREM", KEYS[1], name) end
end
"""


def _reports(client: Redis) -> dict[str, bytes | str]:
    """Return the reports that have not expired by their keys; forget the keys of the others."""
    names: list[Any] = sorted(client.smembers(REPORTING))
    if not names:
        return {}
    reports = dict(zip(names, client.mget(names), strict=True))
    gone = [name for name, sent in reports.items() if sent is None]
    if gone:
        client.eval(_FORGET, 1, REPORTING, *gone)
    return {os.fsdecode(name): sent for name, sent in reports.items() if sent is not None}


def presence(client: Redis) -> dict[Role, bool]:
    """Return for each role whether a process of it reports."""
    up = {name.split(":")[1] for name in _reports(client)}
    return {role: role in up for role in ROLES}


def processes(client: Redis) -> list[Process]:
    """Return the reports of the last 15 seconds; those of another release may be left out."""
    found = []
    for sent in _reports(client).values():
        with suppress(TypeError, ValueError):
            found.append(Process(**json.loads(sent)))
    return found
