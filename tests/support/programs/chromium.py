"""The Chromium that drives the console's tests: `$CHROMIUM`, else what is found, else Debian's.

`python -m tests.support.programs.chromium` installs it where none is found.
"""

import os
import shutil
import subprocess
import sys

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_APT = (
    ("apt-get", "update", "-qq"),
    ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"),
)


def find() -> str | None:
    """Return the path of a Chromium on this machine."""
    return next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM", ""), *_NAMES))), None)


def main() -> int:
    """Install Chromium unless there is one; return 1 and say what to run where that is refused."""
    if find():
        return 0
    as_root = () if os.geteuid() == 0 else ("sudo", "-n")
    for command in _APT:
        if not shutil.which((*as_root, *command)[0]) or _run((*as_root, *command)):
            print(
                "make test: the console's tests need Chromium: sudo apt-get install chromium, or"
                " set CHROMIUM to the path of one",
                file=sys.stderr,
            )
            return 1
    return 0


def _run(command: tuple[str, ...]) -> int:
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
