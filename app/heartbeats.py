"""Signs of life: how `/readyz` knows that a worker and a clock are up.

Each writes a key that Redis forgets by itself. There is one key a role, not one a process: the
question is whether somebody does the work, and one `MGET` answers it.
"""

import json
import os
import socket
from typing import Literal

from redis import Redis
from redis.client import Pipeline

Role = Literal["worker", "scheduler"]

ROLES: tuple[Role, ...] = ("worker", "scheduler")

# Two beats may be missed before a role counts as gone.
EVERY_SECONDS = 5.0
_LASTS_MS = 15_000


def key(role: Role) -> str:
    """Return the Redis key of a role's sign of life."""
    return f"alive:{role}"


def beat(client: "Redis | Pipeline", role: Role, **details: int | str) -> None:
    """Write a sign of life, with details for whoever looks into Redis.

    Raises `redis.RedisError`.
    """
    written_by = {"host": socket.gethostname(), "pid": os.getpid(), **details}
    client.set(key(role), json.dumps(written_by), px=_LASTS_MS)


def presence(client: Redis) -> dict[Role, bool]:
    """Say of each role whether it gave a sign of life within the last 15 seconds.

    Raises `redis.RedisError`.
    """
    signs = client.mget([key(role) for role in ROLES])
    return {role: sign is not None for role, sign in zip(ROLES, signs, strict=True)}
