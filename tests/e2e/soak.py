"""`make soak`: several faults at once, round after round; after each the books must close.

`python -m tests.e2e.soak --minutes 60 --seed 7`. As root, and with `ip` (iproute2), a second worker
runs on another host cut off from the stores; the first round is that alone. A failed round
ends it, and it names the folder of the logs.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.harness.elsewhere import HostRefused, elsewhere
from tests.e2e.harness.misfortune import House, Misfortune, house
from tests.e2e.harness.ordeal import SETTINGS, Neighbourhood, undergo

_AT_ONCE = 3
_SHORTEST_SECONDS, _LONGEST_SECONDS = 15, 60
# Where nothing went out for a whole round, a lane that sends one after another has a minute's work.
_CLOSES_WITHIN = 180.0

Choice = Callable[[Neighbourhood], Sequence[Misfortune]]


def main() -> int:
    """Run rounds for so many minutes; return 0, or 1 after a round that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {arguments.seed}, logs in {folder}", flush=True)
    try:
        with ExitStack() as everything:
            host = None
            try:
                host = everything.enter_context(elsewhere())
            except HostRefused as why:
                print(f"NO WORKER HOST IS CUT OFF: {why}", file=sys.stderr, flush=True)
            service = everything.enter_context(house(folder, SETTINGS, host))
            return _soak(service, arguments.minutes * 60, random.Random(arguments.seed))
    except Exception as error:  # noqa: BLE001  # whatever it is, its trace is kept
        return _told(folder, "the soak could not go on", error)
    except KeyboardInterrupt:
        return 130


def _told(folder: Path, where: str, error: Exception) -> int:
    """Say in one line what is wrong, and keep where it came from; return the exit code."""
    trace = folder / "traceback"
    trace.write_text("".join(traceback.format_exception(error)))
    said = " ".join(str(error).split()) or type(error).__name__
    print(f"\n{where}: {said} ({trace})", file=sys.stderr, flush=True)
    return 1


def _soak(service: House, seconds: float, chance: random.Random) -> int:
    """Run rounds for so many seconds; return 0, or 1 after one that failed."""
    ends = time.monotonic() + seconds
    if service.other is not None and not _passes(
        service, 0, lambda place: [place.worker_cut_off(alone=True)]
    ):
        return 1

    def some(place: Neighbourhood) -> list[Misfortune]:
        chosen = chance.sample(_misfortunes(place), _AT_ONCE)
        return [chance.choice(either) for either in chosen]

    while time.monotonic() < ends:
        if not _passes(service, chance.uniform(_SHORTEST_SECONDS, _LONGEST_SECONDS), some):
            return 1
    return 0


def _passes(service: House, seconds: float, choose: Choice) -> bool:
    """Run one round; say what is wrong if it fails."""
    chosen: list[Misfortune] = []

    def choice(place: Neighbourhood) -> list[Misfortune]:
        chosen.extend(choose(place))
        return chosen

    try:
        undergo(service, seconds, also=choice, within=_CLOSES_WITHIN)
    except Exception as error:  # noqa: BLE001  # whatever it is, this round failed by it
        _told(service.folder, ", ".join(each.name for each in chosen), error)
        return False
    if service.other is not None:
        print(f"the other host came too late {service.other.fenced} times so far", flush=True)
    return True


def _misfortunes(place: Neighbourhood) -> list[list[Misfortune]]:
    """Return all there is; what stands together cannot happen at once."""
    service = place.house
    return [
        [service.killed("worker", every=3), service.worker_frozen()],
        [service.killed("web", every=2)],
        [service.killed("scheduler", every=3)],
        [service.redis_emptied(every=0.3), service.redis_frozen(), service.redis_away()],
        [service.connections_terminated(every=1), service.postgres_restarted(every=10)],
        *([] if service.other is None else [[place.worker_cut_off()]]),
    ]


if __name__ == "__main__":
    sys.exit(main())
