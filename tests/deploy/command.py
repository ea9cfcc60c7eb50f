"""What both commands on Debian's servers share: arguments, a folder of logs, what they print."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.deploy import debian
from tests.deploy.debian import Host, HostRefused


def heading(words: str) -> None:
    """Begin a part."""
    print(f"\n{words}", flush=True)


def say(sentence: str) -> None:
    """Say what was seen to hold."""
    print(f"  {sentence}", flush=True)


def run(
    name: str,
    description: str | None,
    parts: Sequence[str],
    packages: Mapping[str, str],
    work: Callable[[Host, list[str], Path], None],
) -> None:
    """Do the parts that were asked for, or all, as `make NAME`; exit with 0 if every check held.

    1 stands for a check that did not, 2 for a host that cannot do it.
    """
    parser = argparse.ArgumentParser(description=description)
    # argparse holds the default to the choices too.
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[], metavar="PART")
    chosen = parser.parse_args().parts or [*parts]
    # What a shell starts in the background ignores Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="deployed-"))
    try:
        host = debian.prepared(packages)
        print(", ".join(host.versions), flush=True)
        work(host, chosen, folder)
    except HostRefused as refused:
        folder.rmdir()
        print(f"make {name}: {refused}", file=sys.stderr)
        sys.exit(2)
    except Exception as error:  # noqa: BLE001  # whatever it is, its trace is kept
        trace = folder / "traceback"
        trace.write_text("".join(traceback.format_exception(error)))
        said = " ".join(str(error).split()) or type(error).__name__
        print(f"make {name}: {said} ({trace})", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        shutil.rmtree(folder)
        sys.exit(130)
    shutil.rmtree(folder)
    print(f"\nmake {name}: everything passed in {time.monotonic() - began:.0f} s")
