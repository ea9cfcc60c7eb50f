"""The Chromium and the promtool of `make test-all`: told by the environment, found, or Debian's.

`python -m tests.support.programs.debian` installs a Chromium where none is found (the headless
shell: the same engine for half of the processor time), and unpacks promtool into a cache: its
package would start a server.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

_BROWSERS = ("chromium-headless-shell", "chromium")
_OTHERS = ("chromium-browser", "google-chrome", "google-chrome-stable")
_CACHED = Path("~/.cache/record-service/promtool").expanduser()


def chromium() -> str | None:
    """Return the path of a Chromium on this machine."""
    return _found(os.environ.get("CHROMIUM", ""), *_BROWSERS, *_OTHERS)


def promtool() -> str | None:
    """Return the path of a promtool on this machine."""
    return _found(os.environ.get("PROMTOOL", ""), "promtool", str(_CACHED))


def main() -> int:
    """Fetch what is missing; return 1 and say what to run where that is refused."""
    missing = [found for found in (chromium, promtool) if not found()]
    if missing:
        _as_root("apt-get", "update", "-qq")
    if chromium in missing and not any(map(_installed, _BROWSERS)):
        print("make test-all: set CHROMIUM, or sudo apt-get install chromium", file=sys.stderr)
        return 1
    if promtool in missing and not _unpacked():
        print("make test-all: set PROMTOOL, or sudo apt-get install prometheus", file=sys.stderr)
        return 1
    return 0


def _found(*places: str) -> str | None:
    return next(filter(None, map(shutil.which, places)), None)


def _installed(package: str) -> bool:
    return _as_root("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)


def _unpacked() -> bool:
    """Put promtool into the cache: under another name first, for two runs may do this at once."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if not _run("apt-get", "download", "-qq", "prometheus", cwd=folder):
            return False
        (package,) = folder.glob("prometheus_*.deb")
        if not _run("dpkg", "-x", package.name, "unpacked", cwd=folder):
            return False
        _CACHED.parent.mkdir(parents=True, exist_ok=True)
        fresh = _CACHED.with_name(f"promtool.{os.getpid()}")
        shutil.copy2(folder / "unpacked" / "usr" / "bin" / "promtool", fresh)
        fresh.replace(_CACHED)
    return True


def _as_root(*command: str) -> bool:
    return _run(*(() if os.geteuid() == 0 else ("sudo", "-n")), *command)


def _run(*command: str, cwd: Path | None = None) -> bool:
    """Run a command, if there is one of this name; whether it succeeded."""
    if not shutil.which(command[0]):
        return False
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    silent = subprocess.DEVNULL
    return not subprocess.run(command, cwd=cwd, env=environ, stdout=silent, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
