"""PostgreSQL and Redis: answers, versions, limits, clocks, and what waits in them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psycopg
from sqlalchemy.orm import Session

from app import heartbeats, queue
from app.core.health import database_state, gauges, probes
from app.core.health.parts import NotChecked, Part, failed, not_checked, ok, warning
from app.database import cursor
from app.lib.stores import place
from app.manage.doctor.context import Context, reason

_DEGRADED = "#readyz-says-degraded"
_THE_DATABASE = "setup.md#the-database"
_REDIS = "setup.md#redis"
_FULL = 0.9

_OLDEST_POSTGRES, _OLDEST_REDIS = 150_000, 7
_VERSION = "SELECT current_setting('server_version'), current_setting('server_version_num')::int"
# PostgreSQL's reasons for a refusal (its errcodes in words), and their remedies.
_DATABASE_MENDS = (
    ("authentication failed", "set DATABASE_URL as the database's provider shows it"),
    ("no pg_hba.conf entry", "allow this host in pg_hba.conf, or add ?sslmode=require"),
    ("standby", "set DATABASE_URL to the primary, or promote this one"),
    ("does not exist", "set DATABASE_URL to a role and a database that exist"),
    ("invalid connection option", "correct what stands behind the ? in DATABASE_URL"),
    ("too many", "lower DATABASE_CONNECTIONS, or raise the role's CONNECTION LIMIT"),
    ("remaining connection slots", "lower DATABASE_CONNECTIONS, or raise max_connections"),
    ("is not known", "correct the host in DATABASE_URL"),
    ("resolve", "correct the host in DATABASE_URL"),
)
# Errors of redis-py and OpenSSL, and their remedies.
_REDIS_MENDS = (
    ("authenticat", "set REDIS_URL as the provider shows it: redis://:PASSWORD@host:port/0"),
    ("username-password", "set REDIS_URL as the provider shows it: redis://:PASSWORD@host:port/0"),
    ("certificate verify failed", "set REDIS_CA_FILE to the server's authority"),
    ("ssl", "write redis:// where the server speaks no TLS"),
    ("closed by server", "write rediss:// where the server asks for TLS"),
    ("no sentinel knows", "compare the service in REDIS_URL with `sentinel monitor`"),
    ("name or service not known", "correct the host in REDIS_URL"),
    ("name resolution", "correct the host in REDIS_URL"),
)


def database(context: Context) -> Iterator[Part]:
    """Yield whether PostgreSQL answers, its version, and its schema."""
    where = context.database_place
    problem = context.database_problem
    if problem is not None:
        mended = (mend for text, mend in _DATABASE_MENDS if text in problem)
        yield failed(
            f"PostgreSQL at {where} does not answer: {problem}",
            next(mended, "start PostgreSQL, and let this host reach it"),
            see=_DEGRADED,
        )
        return
    with context.server() as session:
        version, number = cursor(session).execute(_VERSION).fetchone() or ("", 0)
    if number < _OLDEST_POSTGRES:
        old = f"PostgreSQL {version} is older than 15"
        yield failed(old, "upgrade PostgreSQL", see=_THE_DATABASE)
    else:
        yield ok(f"PostgreSQL {version} at {where}")
    problem = context.schema_problem
    if problem is not None:
        yield failed(problem, "python -m app.manage migrate", see="#upgrading")


def writes(context: Context) -> Iterator[Part]:
    """Yield whether PostgreSQL takes writes."""
    context.require_schema()
    yield database_state.writes(context.database, context.settings.master_keys)


_OF_REPLICA = """
SELECT pg_is_in_recovery(), coalesce(
    extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()), 0)::float
"""


def replica(context: Context) -> Iterator[Part]:
    """Yield whether the replica answers, and is one."""
    url = context.settings.database_replica_url
    if url is None:
        yield ok("DATABASE_REPLICA_URL is not set")
        return
    see = "scale.md#reads-of-a-replica"
    driver = url.replace("+psycopg", "", 1)
    try:
        with psycopg.connect(driver, connect_timeout=int(context.patient(3.0))) as connection:
            ((is_one, age),) = connection.execute(_OF_REPLICA).fetchall()
    except psycopg.Error as error:
        mend = "correct DATABASE_REPLICA_URL, or let this host reach it: the primary is read"
        yield warning(f"the replica does not answer: {reason(error)}", mend, see=see)
        return
    if is_one:
        yield ok(f"the replica answers; its newest transaction is {age:.0f} s old")
    else:
        mend = "name the standby in DATABASE_REPLICA_URL: the primary is read"
        yield warning("what DATABASE_REPLICA_URL names replicates nothing", mend, see=see)


_LIMITS = """
SELECT current_setting('max_connections')::int
       - current_setting('superuser_reserved_connections')::int
       - coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int,
       (SELECT sum(numbackends)::int FROM pg_stat_database),
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user),
       (SELECT count(*)::int FROM pg_stat_activity WHERE usename = current_user),
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
       (SELECT numbackends FROM pg_stat_database WHERE datname = current_database())
"""
_LIMITED_BY = (
    "max_connections without those reserved",
    "the role's CONNECTION LIMIT",
    "the database's CONNECTION LIMIT",
)


def connections(context: Context) -> Iterator[Part]:
    """Yield whether the pools of two releases fit, and how full the server is now."""
    with context.server() as session:
        behind_pooler = _is_behind_pooler(session)
        row = cursor(session).execute(_LIMITS).fetchone() or ()
    # What limits, how many it admits (-1: any number), and how many of these are open.
    limits = [each for each in zip(_LIMITED_BY, row[::2], row[1::2], strict=True) if each[1] >= 0]
    if behind_pooler:
        yield from _pooler(context)
    else:
        what, most, _ = min(limits, key=lambda each: each[1])
        pools = context.settings.most_connections
        text = f"one release opens up to {pools} connections, and {what} is {most}"
        mend = "lower DATABASE_CONNECTIONS (or WEB_CONCURRENCY), or raise that limit"
        if pools > most:
            late = f"{text}: under load some requests are answered 503"
            yield failed(late, mend, see=_THE_DATABASE)
        elif 2 * pools > most:
            tight = f"{text}: two at once, as in a deploy, do not fit"
            yield warning(tight, mend, see=_THE_DATABASE)
        else:
            yield ok(f"{text}: two at once, as in a deploy, fit")
    for what, most, used in limits:
        if used > _FULL * most:
            yield warning(
                f"{used} of {most} connections are in use ({what})",
                "SELECT usename, application_name, count(*) FROM pg_stat_activity GROUP BY 1, 2",
                see=_THE_DATABASE,
            )


def _is_behind_pooler(session: Session) -> bool:
    """Say whether a pooler answers in place of the server.

    PgBouncer gives a key for cancelling of its own, so the process that it names is not the
    server's.
    """
    cur = cursor(session)
    row = cur.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != cur.connection.info.backend_pid


def _pooler(context: Context) -> Iterator[Part]:
    threshold = context.settings.database_prepare_threshold
    if threshold is not None:
        yield failed(
            f"DATABASE_PREPARE_THRESHOLD is {threshold}, and a pooler such as PgBouncer stands"
            " before PostgreSQL: prepared statements meet other connections",
            "unset DATABASE_PREPARE_THRESHOLD",
            see=_THE_DATABASE,
        )
    yield ok(
        "a pooler such as PgBouncer stands before PostgreSQL; its own limits (max_client_conn,"
        " default_pool_size) cannot be seen from here"
    )


def redis(context: Context) -> Iterator[Part]:
    """Yield whether Redis answers, its version, and whether it may drop what it holds."""
    url = context.settings.redis_url
    if url is None:
        unset = "REDIS_URL is not set: worker and scheduler do not start, and nothing is delivered"
        yield failed(unset, "set REDIS_URL", see=_REDIS)
        return
    problem = context.redis_problem
    if problem is not None:
        mended = (mend for text, mend in _REDIS_MENDS if text in problem.lower())
        yield failed(
            f"Redis at {place(url)} does not answer: {problem}",
            next(mended, "start Redis, and let this host reach it; an empty one will do"),
            see=_DEGRADED,
        )
        return
    info: Mapping[str, Any] = context.redis(lambda client: dict(client.info()))
    # Valkey gives the version of the Redis that it began from as well.
    number = str(info.get("redis_version", "0"))
    name = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {number}"
    if int(number.partition(".")[0]) < _OLDEST_REDIS:
        yield failed(f"{name} is older than 7", "upgrade Redis", see=_REDIS)
    else:
        yield ok(f"{name} at {place(url)}")
    yield from _memory(info)


def _memory(info: Mapping[str, Any]) -> Iterator[Part]:
    policy, limit = info.get("maxmemory_policy", "unknown"), int(info.get("maxmemory", 0))
    used, evicted = int(info.get("used_memory", 0)), int(info.get("evicted_keys", 0))
    keep = "CONFIG SET maxmemory-policy noeviction, or the provider's setting of that name"
    if policy != "noeviction":
        drops = f"its maxmemory-policy is {policy}: full, it drops wakeups and the timetable"
        yield warning(drops, keep, see=_REDIS)
    if evicted:
        dropped = f"it has evicted {evicted} keys since it started: deliveries came later"
        yield warning(dropped, keep, see=_REDIS)
    if limit and used > _FULL * limit:
        yield warning(
            f"it uses {_mib(used)} of {_mib(limit)} MiB: full, it takes no wakeups",
            "start workers if messages wait; else give it more memory",
            see=_REDIS,
        )
    elif policy == "noeviction" and not evicted:
        of = f"of {_mib(limit)} MiB" if limit else "MiB, without a limit"
        yield ok(f"it evicts nothing, and uses {_mib(used)} {of}")


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


_WARN_SKEW = 1.0
# Receivers refuse signatures dated more than five minutes off (Standard Webhooks).
_FAIL_SKEW = 60.0


def clocks(context: Context) -> Iterator[Part]:
    """Yield how far this host's clock is off each store's."""
    for name, ask in (("PostgreSQL", _time_of_database), ("Redis", _time_of_redis)):
        try:
            yield _skew(name, context, ask)
        except NotChecked as why:
            yield not_checked(f"{name}'s clock: {why}")


def _skew(name: str, context: Context, ask: Callable[[Context], float]) -> Part:
    # The first question may open a connection; of the second only the round trip is counted.
    ask(context)
    before = context.clock()
    theirs = ask(context)
    after = context.clock()
    round_trip = max(after - before, 0.0)
    skew = (before + after) / 2 - theirs
    # No more than what cannot be the way there and back.
    certain = max(abs(skew) - round_trip / 2, 0.0)
    where = "ahead of" if skew > 0 else "behind"
    text = f"this host's clock is {abs(skew):.1f} s {where} {name}'s"
    mend = "timedatectl set-ntp true, on the host that is wrong"
    if certain > _FAIL_SKEW:
        why = "receivers refuse signatures that are five minutes off, and ids carry time"
        return failed(f"{text}: {why}", mend, see="#deliveries-fail")
    if certain > _WARN_SKEW:
        return warning(text, mend)
    return ok(f"this host and {name} agree to within {certain + round_trip:.3f} s")


def _time_of_database(context: Context) -> float:
    with context.server() as session:
        query = "SELECT extract(epoch FROM clock_timestamp())::float8"
        row = cursor(session).execute(query).fetchone()
    return float(row[0]) if row else 0.0


def _time_of_redis(context: Context) -> float:
    seconds, microseconds = context.redis(lambda client: client.time())
    return float(seconds + microseconds / 1e6)


_MANY_MESSAGES = 1_000
# As long as the alarms of docs/operations.md wait.
_OVERDUE_SECONDS = 60.0


def queues(context: Context) -> Iterator[Part]:
    """Yield who consumes the queue, what waits in it, and what is overdue in the database."""
    parts: dict[str, Callable[[Context], Iterator[Part]]] = {
        "worker and scheduler": lambda here: probes.roles(here.redis(heartbeats.presence)),
        "messages": _messages,
        "what is due": _due,
    }
    for name, part in parts.items():
        try:
            yield from part(context)
        except NotChecked as why:
            yield not_checked(f"{name}: {why}")


def _messages(context: Context) -> Iterator[Part]:
    names = sorted(queue.QUEUES)
    counts = context.redis(lambda client: [client.llen(queue.queue_key(name)) for name in names])
    waiting = dict(zip(names, counts, strict=True))
    text = f"messages waiting: {', '.join(f'{name} {count}' for name, count in waiting.items())}"
    if max(waiting.values()) > _MANY_MESSAGES:
        yield warning(text, "start a worker, or add one", see="#an-alert-fires")
    else:
        yield ok(text)


def _due(context: Context) -> Iterator[Part]:
    with context.reading() as session:
        now = gauges.read_totals(session)
    mend, see = "start a worker, or add one", "#an-alert-fires"
    lane, job = now["oldest_due_seconds"], now["oldest_job_due_seconds"]
    if lane > _OVERDUE_SECONDS:
        late = (
            f"{now['lanes_overdue']} webhooks have deliveries overdue, the oldest for {lane:.0f} s"
        )
        yield failed(late, mend, see=see)
    if job > _OVERDUE_SECONDS:
        yield failed(f"a job has been due for {job:.0f} s", mend, see=see)
    if now["jobs_dead"]:
        dead = f"{now['jobs_dead']} jobs are dead"
        yield warning(dead, "GET /v1/jobs?status=dead", see="#a-dead-job")
    if max(lane, job) <= _OVERDUE_SECONDS:
        jobs = now["jobs_queued"] + now["jobs_retrying"]
        yield ok(
            f"nothing is overdue: {now['lanes_due']} webhooks and {jobs} jobs have work waiting"
        )
