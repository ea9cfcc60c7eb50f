"""Another host, with a worker: a namespace of its own, with one link that is cut.

A veth pair joins the two. Where it is down packets vanish: nobody says goodbye, and each side finds
out by its own patience alone. It needs root and `ip`.
"""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

from dev import env_file, processes, procfile
from dev.stack import ROOT
from tests.e2e.harness.stack import PLAIN

# For examples and documentation (RFC 5737): no real network is hidden by it.
_NETWORKS = list(IPv4Network("198.51.100.0/24").subnets(new_prefix=30))
_PREFIX = "soak-"
# Each host has names and a network of its own: the kernel removes a namespace, and the link that
# was born in it, some time after `ip netns delete` has returned.
_numbers = itertools.count()


class HostRefused(RuntimeError):
    """This machine makes no other host, or does not let it be cut off; the text says why."""


@dataclass(frozen=True)
class Elsewhere:
    """The other host: `here` is this machine's address on the link, `there` the other's."""

    namespace: str
    link: str
    here: IPv4Interface
    there: IPv4Interface

    @property
    def nowhere(self) -> tuple[str, ...]:
        """The route of last resort to the other host: into nothing."""
        return ("blackhole", str(self.here.network), "metric", "4000")

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return what runs a command there."""
        return [_ip_program(), "netns", "exec", self.namespace, *argv]

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Take the link down for the length of the `with`."""
        _ip("link", "set", self.link, "down")
        try:
            yield
        finally:
            _ip("link", "set", self.link, "up")


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    """Make another host, and remove it in the end. Raises `HostRefused`."""
    if os.geteuid() != 0:
        raise HostRefused("it needs root")
    if shutil.which("ip") is None:
        raise HostRefused("it needs the program ip (of iproute2)")
    _remove_leftovers()
    number = next(_numbers)
    own = f"{os.getpid()}-{number}"
    network = _NETWORKS[(os.getpid() + number) % len(_NETWORKS)]
    here, there = (IPv4Interface((host, network.prefixlen)) for host in network.hosts())
    made = Elsewhere(f"{_PREFIX}{own}", f"soak{own}", here, there)
    with ExitStack() as undone:
        # While the link is down its own route is gone, and the default one must not take over.
        _ip("route", "replace", *made.nowhere)
        undone.callback(_try_ip, "route", "delete", *made.nowhere)
        _ip("netns", "add", made.namespace)
        undone.callback(_try_ip, "netns", "delete", made.namespace)
        undone.callback(_try_ip, "link", "delete", made.link)
        _join(made)
        yield made


def _join(host: Elsewhere) -> None:
    # Born there, one end comes here: both go with the namespace.
    there = ("-netns", host.namespace)
    _ip(*there, "link", "add", "uplink", "type", "veth", "peer", "name", host.link)
    _ip(*there, "link", "set", host.link, "netns", str(os.getpid()))
    _ip("address", "add", str(host.here), "dev", host.link)
    _ip("link", "set", host.link, "up")
    _ip(*there, "address", "add", str(host.there), "dev", "uplink")
    for name in ("lo", "uplink"):
        _ip(*there, "link", "set", name, "up")


def _remove_leftovers() -> None:
    """Remove what runs that were killed have left."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        own = name.removeprefix(_PREFIX)
        if own != name and not Path("/proc", own.partition("-")[0]).exists():
            _try_ip("link", "delete", f"soak{own}")
            _try_ip("netns", "delete", name)


def _ip(*arguments: str) -> str:
    command = [_ip_program(), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.split()) or f"exit code {error.returncode}"
        raise HostRefused(f"`{' '.join(command)}` is refused: {said}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostRefused(f"`{' '.join(command)}` does not run: {error}") from error
    return done.stdout


def _try_ip(*arguments: str) -> None:
    """Do what may have been done already; the next run removes what stays."""
    with suppress(HostRefused):
        _ip(*arguments)


def _ip_program() -> str:
    return shutil.which("ip") or "ip"


class OtherWorker:
    """A second worker of a service whose `DATA_DIR` is `folder / "data"`: the Procfile's line."""

    def __init__(self, host: Elsewhere, folder: Path, settings: Mapping[str, str]) -> None:
        """Start it with the service's settings, which name its stores by their loopback address."""
        self.host = host
        self.log = folder / "other-worker"
        secrets = env_file.read(folder / "data" / "secrets")
        reached = {name: self._from_there(settings[name]) for name in ("DATABASE_URL", "REDIS_URL")}
        environ = {
            **PLAIN,
            **settings,
            **reached,
            "MASTER_KEYS": secrets["MASTER_KEYS"],
            "PATH": f"{Path(sys.executable).parent}:{PLAIN['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "TZ": "UTC",
        }
        line = procfile.read(ROOT / "Procfile")["worker"]
        with self.log.open("ab") as log:
            self._process = processes.start(
                host.command(["/bin/sh", "-c", line]),
                env=environ,
                cwd=ROOT,
                output=log,
            )

    @property
    def address(self) -> str:
        """The address that its requests come from."""
        return str(self.host.there.ip)

    @property
    def fenced(self) -> int:
        """How often it came too late with outcomes: others had taken its rows over."""
        return self.log.read_text("utf-8", "replace").count('"outcomes_fenced"')

    def require_alive(self) -> None:
        """Fail if it has ended."""
        code = self._process.poll()
        assert code is None, f"the other worker ended by itself, with {code}: {self.log}"

    def stop(self) -> None:
        """Stop it, and wait until it has gone."""
        processes.stop(self._process)

    def _from_there(self, url: str) -> str:
        return url.replace("@127.0.0.1:", f"@{self.host.here.ip}:")
