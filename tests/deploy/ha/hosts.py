"""Three hosts that can be cut off: network namespaces, with the servers of docs/ha on them.

On `a` and `b`: PostgreSQL under Patroni, Redis. On `c`: HAProxy and PgBouncer. On all: etcd and a
Sentinel. The configurations are those of docs/ha, with this run's addresses and passwords.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dev import processes
from dev.stack import ROOT
from tests.deploy.debian import Host
from tests.e2e.harness.elsewhere import Elsewhere, elsewhere
from tests.e2e.harness.stack import PLAIN

# The program and arguments of each server, and the file that configures it.
_PROGRAMS = {
    "etcd": (("/usr/bin/etcd", "--config-file"), "etcd.yml"),
    "patroni": (("/usr/bin/patroni",), "patroni.yml"),
    "redis": (("/usr/bin/redis-server",), "redis.conf"),
    "sentinel": (("/usr/bin/redis-sentinel",), "sentinel.conf"),
    "haproxy": (("/usr/sbin/haproxy", "-db", "-f"), "haproxy.cfg"),
    "pgbouncer": (("/usr/sbin/pgbouncer",), "pgbouncer.ini"),
}
_SERVERS = {
    "a": ("etcd", "patroni", "redis", "sentinel"),
    "b": ("etcd", "patroni", "redis", "sentinel"),
    "c": ("etcd", "sentinel", "haproxy", "pgbouncer"),
}
_FOLDER_OF_DOCS = "/var/lib/records"
_ADDRESSES_OF_DOCS = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass
class Machine:
    """One host with its servers; `address` is where the others reach it."""

    name: str
    network: Elsewhere
    folder: Path
    host: Host
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Its address on the link."""
        return str(self.network.there.ip)

    def start(self, *names: str) -> None:
        """Start servers, as the user `postgres`, in a folder of the host."""
        account = self.host.account
        drop = (f"--reuid={account['user']}", f"--regid={account['group']}", "--clear-groups")
        for name in names:
            argv, file = _PROGRAMS[name]
            command = [*argv, str(self.folder / file)]
            with (self.folder / f"{name}.log").open("ab") as log:
                self.running[name] = processes.start(
                    # A change of user would end the tie to this process.
                    self.network.command(["setpriv", *drop, "--pdeathsig=KILL", *command]),
                    env={**PLAIN, "HOME": str(self.folder)},
                    cwd=self.folder,
                    output=log,
                )

    def kill(self, name: str) -> None:
        """Kill a server by SIGKILL; of Patroni, its PostgreSQL too."""
        processes.stop(self.running.pop(name), signal.SIGKILL)
        if name == "patroni":
            self.kill_postgres()

    def kill_postgres(self) -> None:
        """Kill PostgreSQL's first process by SIGKILL; the others of it see that, and end."""
        with suppress(FileNotFoundError, ProcessLookupError):
            pid = (self.folder / "postgresql" / "postmaster.pid").read_text().split()[0]
            os.kill(int(pid), signal.SIGKILL)

    def stop(self) -> None:
        """Stop what still runs."""
        for name in [*self.running]:
            processes.stop(self.running.pop(name), signal.SIGTERM, grace=10.0)
        self.kill_postgres()


def _write(machine: Machine, texts: dict[str, str], others: dict[str, str]) -> None:
    """Write each server's configuration as docs/ha has it, with the addresses of this run."""
    known = {
        "ADDRESS": machine.address,
        "NAME": machine.name,
        _FOLDER_OF_DOCS: str(machine.folder),
        "/usr/lib/postgresql/15/bin": str(machine.host.postgres),
        **{_ADDRESSES_OF_DOCS[name]: address for name, address in others.items()},
        **texts,
    }
    for server in _SERVERS[machine.name]:
        _, file = _PROGRAMS[server]
        text = (ROOT / "docs" / "ha" / file).read_text()
        if server == "redis" and machine.name != "a":
            text += f"replicaof {_ADDRESSES_OF_DOCS['a']} 6379\n"
        for word, value in known.items():
            text = text.replace(word, value)
        give(machine, file, text)


def give(machine: Machine, file: str, text: str) -> None:
    """Write a file that the servers' user owns."""
    path = machine.folder / file
    path.touch(mode=0o600)
    path.write_text(text)
    os.chown(path, machine.host.account["user"], machine.host.account["group"])


@contextmanager
def machines(host: Host, folder: Path, passwords: dict[str, str]) -> Iterator[dict[str, Machine]]:
    """Make the three hosts and their files, start nothing, and remove them in the end."""
    folder.chmod(0o711)
    with ExitStack() as everything:
        _route_between(everything)
        made = {}
        for name in _SERVERS:
            network = everything.enter_context(elsewhere())
            away = ("ip", "-netns", network.namespace, "route", "add", "default", "via")
            subprocess.run([*away, str(network.here.ip)], check=True)
            own = folder / name
            own.mkdir(mode=0o700)
            os.chown(own, host.account["user"], host.account["group"])
            made[name] = Machine(name, network, own, host)
            everything.callback(made[name].stop)
        others = {name: each.address for name, each in made.items()}
        words = {f"{name.upper()}_PASSWORD": value for name, value in passwords.items()}
        for machine in made.values():
            _write(machine, words, others)
        yield made


def _route_between(everything: ExitStack) -> None:
    """Have this machine pass on what one host sends to another, as a switch would."""
    before = _FORWARDING.read_text()
    everything.callback(_FORWARDING.write_text, before)
    _FORWARDING.write_text("1")
