"""The Chromium that drives the console's tests: `$CHROMIUM`, else what is found, else Debian's.

`python -m tests.support.programs.chromium` installs it where none is found. The headless shell is
preferred: the same engine without windows, for half of the processor time.
"""

import os
import shutil
import subprocess
import sys

# As Debian names its packages and their programs.
_PACKAGES = ("chromium-headless-shell", "chromium")
_NAMES = (*_PACKAGES, "chromium-browser", "google-chrome", "google-chrome-stable")
_UPDATE = ("apt-get", "update", "-qq")
_INSTALL = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")


def find() -> str | None:
    """Return the path of a Chromium on this machine."""
    return next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *_NAMES))), None)


def main() -> int:
    """Install Chromium unless there is one; return 1 and say what to run where that is refused."""
    if find():
        return 0
    if _as_root(_UPDATE) and any(_as_root((*_INSTALL, package)) for package in _PACKAGES):
        return 0
    print(
        f"make test-all: the console's tests need Chromium: sudo apt-get install {_PACKAGES[0]}, or"
        " set CHROMIUM to the path of one",
        file=sys.stderr,
    )
    return 1


def _as_root(command: tuple[str, ...]) -> bool:
    """Run a command as root; return whether that was possible and it succeeded."""
    whole = command if os.geteuid() == 0 else ("sudo", "-n", *command)
    if not shutil.which(whole[0]):
        return False
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return not subprocess.run(whole, env=environ, stdout=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
