"""The promtool that checks alert rules: `$PROMTOOL`, else what is found, else Debian's.

`python -m tests.support.programs.promtool` unpacks Debian's into a cache where none is
found; that needs no root, unless apt has no lists yet.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

_CACHE = Path("~/.cache/record-service")
_DOWNLOAD = ("apt-get", "download", "-qq", "prometheus")
_UPDATE = ("apt-get", "update", "-qq")


def find() -> str | None:
    """Return the path of a promtool on this machine."""
    places = (os.environ.get("PROMTOOL", ""), "promtool", str(_CACHE.expanduser() / "promtool"))
    return next(filter(None, map(shutil.which, places)), None)


def main() -> int:
    """Fetch promtool unless there is one; return 1 and say what to run where that is refused."""
    if find():
        return 0
    with TemporaryDirectory() as folder:
        if _download(folder) and _keep(Path(folder)):
            return 0
    print(
        "make test-all: the alert rules' tests need promtool: sudo apt-get install prometheus, or"
        " set PROMTOOL to the path of one",
        file=sys.stderr,
    )
    return 1


def _download(folder: str) -> bool:
    """Have apt put the package into a folder, after an update where it knows of none."""
    as_root = () if os.geteuid() == 0 else ("sudo", "-n")
    return _run(_DOWNLOAD, folder) or (
        _run((*as_root, *_UPDATE), folder) and _run(_DOWNLOAD, folder)
    )


def _keep(folder: Path) -> bool:
    """Unpack the package that lies in `folder`, and put its promtool into the cache."""
    packages = [str(each) for each in folder.glob("prometheus_*.deb")]
    if not packages or not _run(("dpkg", "-x", packages[0], "unpacked"), str(folder)):
        return False
    cache = _CACHE.expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    # Under another name first: two runs may do this at once.
    fresh = cache / f"promtool.{os.getpid()}"
    shutil.copy2(folder / "unpacked" / "usr" / "bin" / "promtool", fresh)
    fresh.replace(cache / "promtool")
    return True


def _run(command: tuple[str, ...], folder: str) -> bool:
    """Run a command in a folder; whether it succeeded."""
    if not shutil.which(command[0]):
        return False
    silent = subprocess.DEVNULL
    done = subprocess.run(command, cwd=folder, stdout=silent, stderr=silent, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
