"""Redis: whether it answers, its version, and whether it may drop what it holds."""

from collections.abc import Iterator, Mapping
from typing import Any

from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding, place

_OLDEST = 7
_SEE = "setup.md#redis"
_KEEP = "CONFIG SET maxmemory-policy noeviction, or the provider's setting of that name"
_FULL = 0.9

# Errors of redis-py and OpenSSL, and their remedies.
_MENDED = (
    ("authenticat", "set REDIS_URL as the provider shows it: redis://:PASSWORD@host:port/0"),
    ("username-password", "set REDIS_URL as the provider shows it: redis://:PASSWORD@host:port/0"),
    ("certificate verify failed", "set REDIS_CA_FILE to the server's authority"),
    ("ssl", "write redis:// where the server speaks no TLS"),
    ("closed by server", "write rediss:// where the server asks for TLS"),
    ("name or service not known", "correct the host in REDIS_URL"),
    ("name resolution", "correct the host in REDIS_URL"),
)


def check(context: Context) -> Iterator[Finding]:
    """Yield what is wrong with the server."""
    url = context.settings.redis_url
    if url is None:
        yield findings.failed(
            "REDIS_URL is not set: worker and scheduler do not start, and nothing is delivered",
            "set REDIS_URL",
            see=_SEE,
        )
        return
    problem = context.redis_problem()
    if problem is not None:
        mended = (mend for text, mend in _MENDED if text in problem.lower())
        yield findings.failed(
            f"Redis at {place(url)} does not answer: {problem}",
            next(mended, "start Redis, and let this host reach it; an empty one will do"),
            see="#readyz-says-degraded",
        )
        return
    info: Mapping[str, Any] = context.redis(lambda client: dict(client.info()))
    yield _version(info, place(url))
    yield from _memory(info)


def _version(info: Mapping[str, Any], where: str) -> Finding:
    # Valkey gives the version of the Redis that it began from as well.
    number = str(info.get("redis_version", "0"))
    named = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {number}"
    if int(number.partition(".")[0]) < _OLDEST:
        return findings.failed(f"{named} is older than 7", "upgrade Redis", see=_SEE)
    return findings.ok(f"{named} at {where}")


def _memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    policy, limit = info.get("maxmemory_policy", "unknown"), int(info.get("maxmemory", 0))
    used, evicted = int(info.get("used_memory", 0)), int(info.get("evicted_keys", 0))
    if policy != "noeviction":
        yield findings.warning(
            f"its maxmemory-policy is {policy}: full, it drops wakeups and the timetable",
            _KEEP,
            see=_SEE,
        )
    if evicted:
        yield findings.warning(
            f"it has evicted {evicted} keys since it started: deliveries came later",
            _KEEP,
            see=_SEE,
        )
    if limit and used > _FULL * limit:
        yield findings.warning(
            f"it uses {_mib(used)} of {_mib(limit)} MiB: full, it takes no wakeups",
            "start workers if messages wait; else give it more memory",
            see=_SEE,
        )
    elif policy == "noeviction" and not evicted:
        of = f"of {_mib(limit)} MiB" if limit else "MiB, without a limit"
        yield findings.ok(f"it evicts nothing, and uses {_mib(used)} {of}")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"
