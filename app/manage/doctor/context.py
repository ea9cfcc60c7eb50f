"""Inputs of the checks: settings, and the two stores, each reached once for all checks."""

import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from typing import Self, TypeVar
from urllib.parse import urlsplit

import psycopg
import redis
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app import queue
from app.core.health import database_state
from app.core.health.parts import NotChecked
from app.database import Database, cursor
from app.errors import Unavailable
from app.settings import Settings

_Answer = TypeVar("_Answer")

# A check may ask several times, and all of them together have some seconds.
_REDIS_SECONDS = 3.0
_READ_ONLY = """
SELECT set_config('transaction_read_only', 'on', true), set_config('statement_timeout', %s, true)
"""
_LONGEST_REASON = 300
_BEHIND = "the database has not had this release's migrations"


class Context:
    """One run of the doctor, shared by the threads of its checks, for the length of a `with`.

    `database_problem`, `schema_problem` and `redis_problem` are why each cannot be used, or None.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        environ: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
        patience: float = 1.0,
    ) -> None:
        """Set up. `environ` is the process's; `clock` returns seconds since 1970.

        `patience` multiplies the checks' own deadlines.
        """
        self.settings = settings
        self.database = database
        self.environ = environ
        self.clock = clock
        self._patience = patience
        self.database_problem: str | None = None
        self.schema_problem: str | None = None
        self.redis_problem: str | None = None
        url = settings.redis_url
        self._redis = None if url is None else queue.connect(url, self.patient(_REDIS_SECONDS))

    @property
    def is_on_this_machine(self) -> bool:
        """Whether address and database are this machine's own, as `make up` has them."""
        hosts = [host for host, _ in self._database_hosts]
        return all(is_local(each) for each in (urlsplit(self.settings.base_url).hostname, *hosts))

    @property
    def database_place(self) -> str:
        """Hosts, ports and name of the database."""
        name = make_url(self.settings.database_url).database or ""
        hosts = (f"{host or 'its socket'}:{port or 5432}" for host, port in self._database_hosts)
        return f"{','.join(hosts)}/{name}"

    @property
    def _database_hosts(self) -> list[tuple[str | None, str | None]]:
        """The database's hosts with their ports: one, or those of a list."""
        url = make_url(self.settings.database_url)
        hosts = (url.host or str(url.query.get("host", ""))).split(",")
        ports = str(url.port or url.query.get("port", "")).split(",")
        return [*zip_longest(hosts, ports[: len(hosts)])]

    def patient(self, seconds: float) -> float:
        """Return for how long a check waits that has so many seconds."""
        return seconds * self._patience

    @contextmanager
    def server(self, seconds: float = 5.0) -> Iterator[Session]:
        """Open a transaction that only reads, on any schema; each statement has `seconds`.

        Raises `NotChecked`.
        """
        if self.database_problem is not None:
            raise NotChecked("the database does not answer")
        try:
            with self.database.across_tenants() as session:
                milliseconds = f"{self.patient(seconds) * 1000:.0f}ms"
                cursor(session).execute(_READ_ONLY, (milliseconds,))
                yield session
        except Unavailable as error:
            raise NotChecked(f"the database did not answer this: {reason(error)}") from error

    @contextmanager
    def reading(self, seconds: float = 5.0) -> Iterator[Session]:
        """Open such a transaction on this release's tables, of all tenants. Raises `NotChecked`."""
        self.require_schema()
        with self.server(seconds) as session:
            yield session

    def require_schema(self) -> None:
        """Raise `NotChecked` without a database that has this release's tables."""
        if self.database_problem is not None:
            raise NotChecked("the database does not answer")
        if self.schema_problem is not None:
            raise NotChecked(_BEHIND)

    def redis(self, question: Callable[["redis.Redis"], _Answer]) -> _Answer:
        """Ask Redis. Raises `NotChecked`."""
        if self._redis is None:
            raise NotChecked("REDIS_URL is not set")
        if self.redis_problem is not None:
            raise NotChecked("Redis does not answer")
        try:
            return question(self._redis)
        except redis.RedisError as error:
            raise NotChecked(f"Redis did not answer this: {reason(error)}") from error

    def __enter__(self) -> Self:
        """Ask both stores once, for all checks."""
        try:
            self.database.ask("SELECT 1", ())
            self.schema_problem = None if database_state.is_current(self.database) else _BEHIND
        except (Unavailable, SQLAlchemyError, psycopg.Error) as error:
            # The others for what cannot be read in the URL.
            self.database_problem = reason(error)
        try:
            if self._redis is not None:
                self._redis.ping()
        except redis.RedisError as error:
            self.redis_problem = reason(error)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections to Redis; the database is the caller's."""
        if self._redis is not None:
            self._redis.close()


def is_local(host: str | None) -> bool:
    """Say whether a host of a URL is this machine's loopback."""
    if not host:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def reason(error: BaseException) -> str:
    """Return what the first cause of an error says, on one line of at most 300 characters.

    For errors of drivers, which name hosts, roles and databases, and never a password.
    """
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = cause
    text = " ".join(str(error).split())
    return text[:_LONGEST_REASON] or type(error).__name__
