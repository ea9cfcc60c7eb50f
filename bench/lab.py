"""The place of a bench: stores of its own, as `make up` runs them, a receiver, and the load."""

import itertools
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psycopg
from psycopg import sql

from app import migrations
from app.database import Database
from app.settings import Settings, environment
from bench.pace import Pace, Stopwatch
from bench.processes import BenchError, Process
from bench.service import Service
from bench.traffic import receiver
from bench.traffic.load import Load, Plan, Tally
from bench.traffic.receiver import Receiver
from dev.data_dir import DataDir
from dev.stores.postgres import EmbeddedPostgres
from dev.stores.valkey import EmbeddedValkey

_SEGMENTS = 40


@dataclass
class Lab:
    """What every part of a bench stands on."""

    folder: Path
    secrets: Mapping[str, str]
    postgres: EmbeddedPostgres
    valkey: EmbeddedValkey
    receiver: Receiver
    load: Load
    stack: ExitStack
    _names: "itertools.count[int]" = field(default_factory=itertools.count)

    @cached_property
    def service(self) -> Service:
        """The whole service, started when a part asks for it first."""
        service = Service(self)
        self.stack.callback(service.stop)
        service.start()
        return service

    @property
    def environ(self) -> dict[str, str]:
        """The environment of every process: the bench's own, and where the stores are."""
        own = environment()
        return {
            **own,
            **self.secrets,
            "PATH": f"{Path(sys.executable).parent}:{own.get('PATH', '')}",
            "PYTHONUNBUFFERED": "1",
            "TZ": "UTC",
            "DATABASE_URL": self.postgres.url,
            "DATABASE_ADMIN_URL": self.postgres.admin_url,
            "DATABASE_PREPARE_THRESHOLD": "2",
            "REDIS_URL": self.valkey.url,
            "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128",
        }

    def spawn(self, name: str, argv: Sequence[str], **environ: str) -> Process:
        """Start a command with `environ` added to its environment."""
        log = self.folder / f"{name}.{next(self._names)}.log"
        return Process(name, argv, env={**self.environ, **environ}, log=log)

    @contextmanager
    def running(self, name: str, argv: Sequence[str], **environ: str) -> Iterator[Process]:
        """Run a command for the length of a `with`."""
        process = self.spawn(name, argv, **environ)
        try:
            yield process
        finally:
            process.stop()

    @contextmanager
    def database(self) -> Iterator["DatabaseURLs"]:
        """Make an empty database, and drop it in the end."""
        name = f"bench_{next(self._names)}"
        with psycopg.connect(self.postgres.admin_url, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            try:
                yield DatabaseURLs(
                    _other(self.postgres.url, name), _other(self.postgres.admin_url, name)
                )
            finally:
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    @contextmanager
    def migrated(self) -> Iterator[tuple[Settings, Database]]:
        """Make a database of this release without a service; yield its settings and its door."""
        with self.database() as urls:
            environ = {**self.environ, "BASE_URL": "http://127.0.0.1"}
            environ |= {"DATABASE_URL": urls.service, "DATABASE_ADMIN_URL": urls.admin}
            settings = Settings.from_environ(environ)
            migrations.migrate(settings.database_admin_url, app_url=settings.database_url)
            database = Database(settings.database_url, application="bench")
            try:
                yield settings, database
            finally:
                database.close()

    def drive(self, plan: Plan) -> Tally:
        """Drive a plan; raises `BenchError` when anything of it was refused."""
        tally = self.load.drive(plan)
        if tally.refused:
            raise BenchError(f"{tally.refused} requests were refused, first: {tally.refusal}")
        return tally

    def paced(self, plan: Plan, web: int) -> Pace:
        """Drive a plan; return its pace, with the cost of a web server, by its pid, and stores."""
        watch = Stopwatch([web, *self.store_pids().values()])
        tally = self.drive(plan)
        return Pace(tally.per_second, watch.stop(len(tally.answers)).cpu_each)

    def store_pids(self) -> dict[str, int]:
        """Return the process numbers of the stores."""
        stores = (self.postgres, self.valkey)
        return {store.name: store.process.pid for store in stores if store.process is not None}

    def redis_url(self, number: int) -> str:
        """Return the address of another of Valkey's databases: a peer's own."""
        return f"{self.valkey.url.rpartition('/')[0]}/{number}"


@dataclass(frozen=True)
class DatabaseURLs:
    """One database as the service's role and as its owner reach it."""

    service: str
    admin: str


@contextmanager
def opened(folder: Path) -> Iterator[Lab]:
    """Set a lab up in a folder, and remove what it held in the end.

    After an error it stays until the next run: its logs tell more.
    """
    with DataDir(folder) as home:
        _clear(folder)
        with ExitStack() as stack:
            yield _set_up(home, stack)
        _clear(folder)


def _set_up(home: DataDir, stack: ExitStack) -> Lab:
    folder = home.path
    postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres"))
    _provide_wal(postgres)
    valkey = stack.enter_context(EmbeddedValkey(folder / "valkey"))
    receiving = stack.enter_context(receiver.running())
    load = stack.enter_context(Load())
    return Lab(folder, home.secrets(), postgres, valkey, receiving, load, stack)


def _provide_wal(postgres: EmbeddedPostgres) -> None:
    """Have PostgreSQL keep WAL segments for reuse, as one that has run for a while does.

    A new one makes each when it is needed, 16 MB of zeros: up to 60 ms in which nothing commits.
    """
    with psycopg.connect(postgres.admin_url, autocommit=True) as admin:
        for _ in range(_SEGMENTS):
            admin.execute("SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()")
        admin.execute("CHECKPOINT")


def _clear(folder: Path) -> None:
    """Remove what a run has left, the lock aside; PostgreSQL's data may lie out of the folder."""
    data = folder / "postgres" / "data"
    if data.is_symlink():
        shutil.rmtree(data.resolve().parent)
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != "lock":
            entry.unlink()


def owner_url(settings: Settings) -> str:
    """Return the address of a database's owner, as the driver itself takes it."""
    return settings.database_admin_url.replace("+psycopg", "")


def _other(url: str, database: str) -> str:
    return f"{url.rpartition('/')[0]}/{database}"
