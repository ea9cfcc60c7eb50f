"""`make test-deploy`: the service on Debian's own servers, deployed as README and setup.md say.

Root and apt are needed; what is missing is installed, and not started. All runs on loopback in a
temporary folder, and ends with this program. Logs stay in the folder if a check fails.
"""

import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.deploy import debian, servers
from tests.deploy.debian import HostRefused
from tests.deploy.figures import HEAD, Figures
from tests.deploy.servers import Servers
from tests.deploy.variants import VARIANTS, deployed


def main() -> int:
    """Run every check; return 0 if all held, 1 after the first that did not."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="deployed-"))
    try:
        host = debian.prepared()
        print(", ".join(host.versions), flush=True)
        with servers.serving(host, folder) as running:
            figures = _all(running)
    except HostRefused as why:
        print(f"make test-deploy: {why}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  # whatever it is, its trace is kept
        return _told(folder, error)
    shutil.rmtree(folder)
    print("\n".join(["", HEAD, *(each.row() for each in figures)]))
    print(f"\nmake test-deploy: everything passed in {time.monotonic() - began:.0f} s")
    return 0


def _all(running: Servers) -> list[Figures]:
    return [deployed(running, variant) for variant in VARIANTS]


def _told(folder: Path, error: Exception) -> int:
    """Say in one line what is wrong, and keep where it came from; return the exit code."""
    trace = folder / "traceback"
    trace.write_text("".join(traceback.format_exception(error)))
    said = " ".join(str(error).split()) or type(error).__name__
    print(f"make test-deploy: {said} ({trace})", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
