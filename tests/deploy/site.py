"""A deployment: the Procfile's lines, two processes of each, on Debian's servers.

A process manager's part is played by `Site`: `release` first, then the others, each in a control
session of its own. What was killed is started again when the test says.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

from app.lib.crypto import api_keys
from app.lib.crypto.sealing import MasterKeys
from dev import processes, procfile
from dev.stack import ROOT
from tests.deploy.servers import ALONE, OWNER, SERVICE, Servers
from tests.e2e.harness.stack import PLAIN, START_SECONDS, Caller
from tests.support.faults import LONG_ENOUGH, until
from tests.support.programs.processes import family
from tests.support.servers.ports import own_port

# README: SIGTERM drains within so long.
DRAIN_SECONDS = 25.0
# At least so often: each request takes the service's time.
ASK_AGAIN_SECONDS = 0.2
_BOTH = (1, 2)


@dataclass(frozen=True)
class Variant:
    """One way to deploy; `name` is its databases' too, `number` its Redis database."""

    name: str
    number: int
    two_roles: bool = False
    pooled: bool = False
    server: str = "granian"

    def __str__(self) -> str:
        roles = "two roles" if self.two_roles else "one role"
        through = "PgBouncer" if self.pooled else "direct"
        return f"{roles}, {through}, {self.server}"


@dataclass
class Site:
    """The processes of a variant on one database."""

    servers: Servers
    variant: Variant
    database: str
    settings: dict[str, str] = field(default_factory=dict)
    # Of the processes with this number alone.
    settings_of: dict[str, dict[str, str]] = field(default_factory=dict)
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.servers.folder / self.database
        self.folder.mkdir()
        self.ports = {number: own_port() for number in _BOTH}
        self.root_key = self.settings.get("ROOT_ADMIN_KEY") or api_keys.new()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.settings = self._required() | self.settings

    @property
    def owner(self) -> str:
        """The role that owns the database."""
        return OWNER if self.variant.two_roles else ALONE

    @property
    def role(self) -> str:
        """The role of the service itself."""
        return SERVICE if self.variant.two_roles else ALONE

    @property
    def base_urls(self) -> list[str]:
        """Where both of `web` listen."""
        return [f"http://127.0.0.1:{port}" for port in self.ports.values()]

    def caller(self, number: int = 1, key: str | None = None) -> Caller:
        """Return a caller of one `web`, with the root admin key unless another is given."""
        return Caller(self.base_urls[number - 1], key or self.root_key)

    def make_database(self) -> None:
        """Make the database, empty."""
        self.servers.make_database(self.database, self.owner)

    def run(self, command: str, *, cwd: Path | None = None) -> str:
        """Run a command in an operator's shell; return what it printed, or fail with that."""
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", command],
            cwd=cwd or ROOT,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"`{command}`: {done.stdout.strip()}"
        return done.stdout

    def release(self) -> str:
        """Run the Procfile's `release`; return its first line."""
        return self.run(self._lines()["release"]).splitlines()[0]

    def start(self, *names: str) -> float:
        """Start processes, by default two of each; return the seconds until both `web` are ready.

        A name is a line of the Procfile and a number: `web-1`.
        """
        began = time.monotonic()
        for name in names or [f"{line}-{n}" for line in self._kinds() for n in _BOTH]:
            self._spawn(name)
        until(self._ready, START_SECONDS, pause=ASK_AGAIN_SECONDS)
        return time.monotonic() - began

    def readiness(self, number: int) -> tuple[int, dict[str, Any]]:
        """Return what `/readyz` of a `web` says; status 0 if it does not answer."""
        try:
            answer = requests.get(self.base_urls[number - 1] + "/readyz", timeout=LONG_ENOUGH)
        except requests.ConnectionError:
            return 0, {}
        return answer.status_code, answer.json()

    def parts(self) -> dict[str, str]:
        """Return the state of each part, as the first `web` knows it."""
        found: dict[str, str] = self.readiness(1)[1]["parts"]
        return found

    def wait_for(self, *degraded: str) -> None:
        """Wait until every `web` says that just these parts are degraded."""
        said: list[object] = []

        def agreed() -> bool:
            self.require_alive()
            said[:] = [self.readiness(number)[1].get("degraded") for number in self._webs()]
            return said == [[*degraded]] * len(said)

        try:
            until(agreed, START_SECONDS, pause=ASK_AGAIN_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"/readyz says {said}, and not {degraded}") from error

    def kill(self, name: str) -> None:
        """Kill a process's leader by SIGKILL, and wait until all of it has gone."""
        whole = self.processes()[name]
        processes.stop(self.running.pop(name), signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in whole))

    def stop(self, *names: str) -> float:
        """Send SIGTERM to these processes, or all; return the seconds until they ended.

        Fails if one had to be killed after `DRAIN_SECONDS`.
        """
        leaving = {name: self.running.pop(name) for name in names or [*self.running]}
        began = time.monotonic()
        for process in leaving.values():
            process.terminate()
        killed = []
        for name, process in leaving.items():
            if processes.stop(process, grace=DRAIN_SECONDS) == -signal.SIGKILL:
                killed.append(name)
        took = time.monotonic() - began
        assert not killed, f"{killed} did not end within {DRAIN_SECONDS} s of SIGTERM"
        return took

    def require_alive(self) -> None:
        """Fail if a process has ended by itself."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        assert not ended, f"{ended} ended: see the logs in {self.folder}"

    def processes(self) -> dict[str, list[int]]:
        """Return the processes that run under each name, leaders first."""
        return {name: family(leader.pid) for name, leader in self.running.items()}

    def _spawn(self, name: str) -> None:
        line, _, number = name.partition("-")
        own = {"PORT": str(self.ports[int(number)])} if line == "web" else {}
        own |= self.settings_of.get(number, {})
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = processes.start(
                ["/bin/sh", "-c", self._command(line)],
                env=self._environ(**own),
                cwd=ROOT,
                output=log,
            )

    def _ready(self) -> bool:
        self.require_alive()
        return all(self.readiness(number)[0] == 200 for number in self._webs())

    def _webs(self) -> list[int]:
        return [number for number in _BOTH if f"web-{number}" in self.running]

    def _kinds(self) -> list[str]:
        return [line for line in self._lines() if line != "release"]

    def _lines(self) -> Mapping[str, str]:
        return procfile.read(ROOT / "Procfile")

    def _command(self, line: str) -> str:
        if line == "web" and self.variant.server == "gunicorn":
            return "exec gunicorn --bind \"127.0.0.1:$PORT\" --threads 16 'app.web:create_app()'"
        return self._lines()[line]

    def _environ(self, **own: str) -> dict[str, str]:
        binaries = ROOT / ".venv" / "bin"
        path = binaries if binaries.exists() else Path(sys.executable).parent
        return {**PLAIN, **self.settings, "PATH": f"{path}:{PLAIN['PATH']}", **own}

    def _required(self) -> dict[str, str]:
        """Return the settings that README's table names, and what loopback needs."""
        pooled = self.variant.pooled
        url = self.servers.database_url
        admin = {"DATABASE_ADMIN_URL": url(self.owner, self.database, pooled=pooled)}
        return {
            "DATABASE_URL": url(self.role, self.database, pooled=pooled),
            **(admin if self.variant.two_roles else {}),
            "REDIS_URL": self.servers.redis_url(self.variant.number),
            **self.servers.redis_settings,
            "BASE_URL": self.base_urls[0],
            "MASTER_KEYS": MasterKeys.generate(),
            "ROOT_ADMIN_KEY": self.root_key,
            "LOG_HEAD_URL": f"file://{self.servers.folder}/{self.variant.name}-head",
            "HOST": "127.0.0.1",
            "WEB_CONCURRENCY": "2",
            "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
            # What failed is tried again while the check still looks on.
            "RETRY_SCHEDULE": ",".join(["0", *["1"] * 19]),
            "PAUSE_SECONDS": "1",
            "PYTHONUNBUFFERED": "1",
        }
