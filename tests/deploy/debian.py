"""Debian's PostgreSQL, Redis and PgBouncer: installed by apt where they are missing, never started.

Needs root. A `policy-rc.d` forbids the installation to start services, unless the host has its own.
"""

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dev.processes import Account

_POLICY = Path("/usr/sbin/policy-rc.d")
_OF_POSTGRES = "lib/postgresql/*/bin/postgres"
# The package of each program, and where Debian puts that.
_PACKAGES = {
    "postgresql": _OF_POSTGRES,
    "redis-server": "bin/redis-server",
    "pgbouncer": "sbin/pgbouncer",
    "curl": "bin/curl",
    "git": "bin/git",
    "python3-venv": "lib/python3.*/ensurepip",
}


class HostRefused(RuntimeError):
    """This host cannot run the deployments; the text says why, in one line."""


@dataclass(frozen=True)
class Host:
    """What a deployment runs on; `account` is the user that servers run as."""

    postgres: Path
    account: Account
    versions: tuple[str, ...]


def prepared(more: Mapping[str, str]) -> Host:
    """Install what is missing; return where it is. Raises `HostRefused`.

    `more` are further packages, each with a file that it has below /usr.
    """
    packages = {**_PACKAGES, **more}
    if os.geteuid() != 0:
        raise HostRefused("it needs root: run it with sudo, on a host to throw away")
    if shutil.which("apt-get") is None:
        raise HostRefused("it needs apt-get: run it on Debian or Ubuntu")
    if missing := [name for name, file in packages.items() if not _found(file)]:
        print(f"installing {', '.join(missing)}", flush=True)
        with _services_stay_down():
            _apt("update", "-qq")
            _apt("install", "-y", "-qq", "--no-install-recommends", *missing)
    if still := [name for name, file in packages.items() if not _found(file)]:
        raise HostRefused(f"apt installed no {', '.join(still)}")
    # Several major versions may be there: the highest one.
    postgres = max(_found(_OF_POSTGRES), key=lambda found: int(found.parents[1].name)).parent
    user = pwd.getpwnam("postgres")
    return Host(postgres, {"user": user.pw_uid, "group": user.pw_gid}, _versions(postgres))


def _found(file: str) -> list[Path]:
    return [*Path("/usr").glob(file)]


def _versions(postgres: Path) -> tuple[str, ...]:
    """Return each server's name and version."""
    programs = (postgres / "postgres", Path("/usr/bin/redis-server"), Path("/usr/sbin/pgbouncer"))
    said = (
        subprocess.run([each, "--version"], capture_output=True, text=True, check=True).stdout
        for each in programs
    )
    return tuple(re.split(r" \(Debian| sha=|\n", each)[0] for each in said)


@contextmanager
def _services_stay_down() -> Iterator[None]:
    """Have apt start nothing for the length of the `with`."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def _apt(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
        raise HostRefused(f"`apt-get {' '.join(arguments)}` is refused: {said[-1]}")
