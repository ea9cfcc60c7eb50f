"""Connections: what all processes may open, against what the server and the role admit."""

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app.database import cursor
from app.manage.doctor import findings
from app.manage.doctor.context import Context
from app.manage.doctor.findings import Finding

_SEE = "setup.md#the-database"

_READ = """
SELECT current_setting('max_connections')::int AS most,
       current_setting('superuser_reserved_connections')::int
       + coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int AS reserved,
       (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user) AS of_role,
       (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) AS of_database,
       (SELECT sum(numbackends)::int FROM pg_stat_database) AS in_use,
       (SELECT count(*)::int FROM pg_stat_activity WHERE usename = current_user) AS by_role,
       (SELECT numbackends FROM pg_stat_database WHERE datname = current_database()) AS here
"""
_FULL = 0.9


@dataclass(frozen=True)
class _Limits:
    """The server's limits on connections, and how many are open; -1 means no limit."""

    most: int
    reserved: int
    of_role: int
    of_database: int
    in_use: int
    by_role: int
    here: int

    def each(self) -> Iterator[tuple[str, int, int]]:
        """Yield what limits, how many it admits, and how many of these are open."""
        yield "max_connections without those reserved", self.most - self.reserved, self.in_use
        if self.of_role >= 0:
            yield "the role's CONNECTION LIMIT", self.of_role, self.by_role
        if self.of_database >= 0:
            yield "the database's CONNECTION LIMIT", self.of_database, self.here


def check(context: Context) -> Iterator[Finding]:
    """Yield whether the pools of two releases fit, and how full the server is now."""
    with context.server() as session:
        behind_pooler = _is_behind_pooler(session)
        limits = cursor(session, class_row(_Limits)).execute(_READ).fetchone()
    if limits is None:
        raise LookupError("a query of settings has one row")
    if behind_pooler:
        yield from _pooler(context)
    else:
        yield _pools(context, limits)
    for what, most, used in limits.each():
        if used > _FULL * most:
            yield findings.warning(
                f"{used} of {most} connections are in use ({what})",
                "SELECT usename, application_name, count(*) FROM pg_stat_activity GROUP BY 1, 2",
                see=_SEE,
            )


def _is_behind_pooler(session: Session) -> bool:
    """Say whether a pooler answers in place of the server.

    PgBouncer gives a key for cancelling of its own, so the process that it names is not the
    server's.
    """
    cur = cursor(session)
    row = cur.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and row[0] != cur.connection.info.backend_pid


def _pooler(context: Context) -> Iterator[Finding]:
    threshold = context.settings.database_prepare_threshold
    if threshold is not None:
        yield findings.failed(
            f"DATABASE_PREPARE_THRESHOLD is {threshold}, and a pooler such as PgBouncer stands"
            " before PostgreSQL: prepared statements meet other connections",
            "unset DATABASE_PREPARE_THRESHOLD",
            see=_SEE,
        )
    yield findings.ok(
        "a pooler such as PgBouncer stands before PostgreSQL; its own limits (max_client_conn,"
        " default_pool_size) cannot be seen from here"
    )


def _pools(context: Context, limits: _Limits) -> Finding:
    pools = context.settings.most_connections
    what, most, _ = min(limits.each(), key=lambda each: each[1])
    text = f"one release opens up to {pools} connections, and {what} is {most}"
    mend = "lower DATABASE_CONNECTIONS (or WEB_CONCURRENCY), or raise that limit"
    if pools > most:
        return findings.failed(f"{text}: under load some requests are answered 503", mend, see=_SEE)
    if 2 * pools > most:
        return findings.warning(f"{text}: two at once, as in a deploy, do not fit", mend, see=_SEE)
    return findings.ok(f"{text}: two at once, as in a deploy, fit")
