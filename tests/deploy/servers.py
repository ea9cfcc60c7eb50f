"""Debian's servers as processes of our own: PostgreSQL, Redis by TLS alone, PgBouncer between.

They listen on loopback, at free ports, and run as Debian's user `postgres` in a folder of theirs.
All of them end with this process.
"""

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis

from dev import processes
from tests.deploy.debian import Host
from tests.e2e.harness.stack import PLAIN
from tests.support.faults import until
from tests.support.servers.certificates import ServerAuthority
from tests.support.servers.ports import own_port

# The role that owns what two roles share, the service's own then, and the one that is alone.
OWNER, SERVICE, ALONE = "records_owner", "record_service", "records"
_SUPERUSER = "postgres"
_START_SECONDS = 120.0
# As docs/setup.md says it.
UNPRIVILEGED = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOBYPASSRLS"

_PGBOUNCER = """
[databases]
* = host=127.0.0.1 port={postgres}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {folder}/userlist
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
"""

_REDIS = """
bind 127.0.0.1
port 0
tls-port {port}
tls-cert-file {certificate}
tls-key-file {certificate}
tls-ca-cert-file {authority}
tls-auth-clients no
requirepass {password}
maxmemory-policy noeviction
save ""
dir {folder}
"""


@dataclass(frozen=True)
class Servers:
    """The servers, once they are up."""

    folder: Path
    host: Host
    ca_file: Path
    postgres_port: int
    pgbouncer_port: int
    redis_port: int
    passwords: dict[str, str]

    def database_url(self, role: str, database: str, *, pooled: bool = False) -> str:
        """Return the URL of a database as this role, behind PgBouncer if `pooled`."""
        port = self.pgbouncer_port if pooled else self.postgres_port
        return f"postgresql://{role}:{self.passwords[role]}@127.0.0.1:{port}/{database}"

    def admin_url(self, database: str) -> str:
        """Return the URL of a database as the superuser, for looking at it."""
        return self.database_url(_SUPERUSER, database)

    def redis_url(self, number: int) -> str:
        """Return the URL of one of Redis's databases."""
        return f"rediss://:{self.passwords['redis']}@127.0.0.1:{self.redis_port}/{number}"

    @property
    def redis_settings(self) -> dict[str, str]:
        """The settings by which the service trusts Redis's certificate."""
        return {"REDIS_CA_FILE": str(self.ca_file)}

    def make_database(self, name: str, owner: str) -> None:
        """Make an empty database that a role owns."""
        with closing(psycopg.connect(self.admin_url("postgres"), autocommit=True)) as connection:
            connection.execute(f"CREATE DATABASE {name} OWNER {owner}".encode())


@contextmanager
def serving(host: Host, folder: Path) -> Iterator[Servers]:
    """Run all three in `folder`, an empty one, for the length of the `with`."""
    folder.chmod(0o711)
    names = (_SUPERUSER, OWNER, SERVICE, ALONE, "redis")
    authority = ServerAuthority(folder)
    certificate = authority.server_file("127.0.0.1", "localhost")
    servers = Servers(
        folder,
        host,
        Path(authority.ca_file),
        own_port(),
        own_port(),
        own_port(),
        {name: secrets.token_urlsafe(24) for name in names},
    )
    servers.ca_file.chmod(0o644)
    with ExitStack() as everything:
        _run(everything, servers, "postgres", _postgres(servers))
        until(lambda: _takes_queries(servers), _START_SECONDS)
        _make_roles(servers)
        _run(everything, servers, "redis", _redis(servers, certificate))
        _run(everything, servers, "pgbouncer", _pgbouncer(servers))
        _until_it_answers(servers.redis_port)
        _until_it_answers(servers.pgbouncer_port)
        _prove_redis_wants_tls_and_a_password(servers)
        yield servers


def _run(everything: ExitStack, servers: Servers, name: str, argv: list[str]) -> None:
    """Start a server as its user; stop it in the end."""
    with (servers.folder / f"{name}.log").open("ab") as log:
        process = processes.start(
            argv,
            env=PLAIN,
            cwd=Path("/"),
            account=servers.host.account,
            output=log,
        )
    # By SIGINT: PostgreSQL waits for no client then.
    everything.callback(processes.stop, process, signal.SIGINT)


def _folder(servers: Servers, name: str) -> Path:
    made = servers.folder / name
    made.mkdir(mode=0o700)
    return _given(servers, made)


def _file(servers: Servers, path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return _given(servers, path)


def _given(servers: Servers, path: Path) -> Path:
    """Make the servers' user the owner of a file or folder."""
    account = servers.host.account
    os.chown(path, account["user"], account["group"])
    return path


def _postgres(servers: Servers) -> list[str]:
    folder = _folder(servers, "postgres")
    password = _file(servers, folder / "password", servers.passwords[_SUPERUSER])
    subprocess.run(
        [
            *(servers.host.postgres / "initdb", "-D", folder / "data", "-U", _SUPERUSER),
            *("--auth=scram-sha-256", f"--pwfile={password}"),
            *("--encoding=UTF8", "--locale=C.UTF-8"),
        ],
        env=PLAIN,
        cwd="/",
        stdout=subprocess.DEVNULL,
        check=True,
        extra_groups=[],
        **servers.host.account,
    )
    return [
        *(str(servers.host.postgres / "postgres"), "-D", str(folder / "data")),
        *("-c", "listen_addresses=127.0.0.1", "-c", f"port={servers.postgres_port}"),
        *("-c", "unix_socket_directories="),
    ]


def _make_roles(servers: Servers) -> None:
    """Make the service's roles, each as docs/setup.md says it."""
    with closing(psycopg.connect(servers.admin_url("postgres"), autocommit=True)) as connection:
        for role in (OWNER, SERVICE, ALONE):
            made = f"CREATE ROLE {role} {UNPRIVILEGED} PASSWORD '{servers.passwords[role]}'"
            connection.execute(made.encode())


def _redis(servers: Servers, certificate: Path) -> list[str]:
    folder = _folder(servers, "redis")
    text = _REDIS.format(
        port=servers.redis_port,
        certificate=_given(servers, certificate),
        authority=servers.ca_file,
        password=servers.passwords["redis"],
        folder=folder,
    )
    return ["/usr/bin/redis-server", str(_file(servers, folder / "redis.conf", text))]


def _pgbouncer(servers: Servers) -> list[str]:
    folder = _folder(servers, "pgbouncer")
    users = "".join(f'"{name}" "{servers.passwords[name]}"\n' for name in (OWNER, SERVICE, ALONE))
    _file(servers, folder / "userlist", users)
    text = _PGBOUNCER.format(
        postgres=servers.postgres_port, port=servers.pgbouncer_port, folder=folder
    )
    return ["/usr/sbin/pgbouncer", str(_file(servers, folder / "pgbouncer.ini", text))]


def _takes_queries(servers: Servers) -> bool:
    """Say whether PostgreSQL is up; while it starts it refuses connections."""
    try:
        psycopg.connect(servers.admin_url("postgres")).close()
    except psycopg.OperationalError:
        return False
    return True


def _until_it_answers(port: int) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(answers, _START_SECONDS)


def _prove_redis_wants_tls_and_a_password(servers: Servers) -> None:
    """Show that a client without the authority, or without the password, gets nothing."""
    with (
        redis.Redis.from_url(servers.redis_url(0)) as stranger,
        pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        stranger.ping()
    url = f"rediss://127.0.0.1:{servers.redis_port}"
    with (
        redis.Redis.from_url(url, ssl_ca_certs=str(servers.ca_file)) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
