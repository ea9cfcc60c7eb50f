"""`make test-deploy`: the service on Debian's own servers, deployed as README and setup.md say.

Root and apt are needed; what is missing is installed, and not started. All runs on loopback in a
temporary folder, and ends with this program. Logs stay in the folder if a check fails.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.deploy import debian, servers
from tests.deploy.debian import HostRefused
from tests.deploy.restoring import restored
from tests.deploy.servers import Servers
from tests.deploy.variants import deployed
from tests.deploy.words import as_written

# In the order of work.
PARTS: Mapping[str, Callable[[Servers], object]] = {
    "variants": deployed,
    "words": as_written,
    "restored": restored,
}


def main() -> int:
    """Run the parts; return 0 if every check held, 1 after the first that did not."""
    parser = argparse.ArgumentParser(prog="python -m tests.deploy", description=__doc__)
    # argparse holds the default to the choices too.
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], metavar="PART")
    chosen = parser.parse_args().parts or [*PARTS]
    # What a shell starts in the background ignores Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="deployed-"))
    try:
        _run(chosen, folder)
    except Exception as error:  # noqa: BLE001  # whatever it is, its trace is kept
        return _told(folder, error)
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        return 130
    shutil.rmtree(folder)
    print(f"\nmake test-deploy: everything passed in {time.monotonic() - began:.0f} s")
    return 0


def _run(parts: Sequence[str], folder: Path) -> None:
    host = debian.prepared()
    print(", ".join(host.versions), flush=True)
    with servers.serving(host, folder) as running:
        for part in parts:
            PARTS[part](running)


def _told(folder: Path, error: Exception) -> int:
    """Say in one line what is wrong, and keep where it came from; return the exit code."""
    if isinstance(error, HostRefused):
        folder.rmdir()
        print(f"make test-deploy: {error}", file=sys.stderr)
        return 2
    trace = folder / "traceback"
    trace.write_text("".join(traceback.format_exception(error)))
    said = " ".join(str(error).split()) or type(error).__name__
    print(f"make test-deploy: {said} ({trace})", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
