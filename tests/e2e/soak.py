"""`make soak`: several faults at once, round after round; after each the books must close.

`python -m tests.e2e.soak --minutes 60 --seed 7`. It stops at the first round whose books do not
close, says what is wrong, and leaves the service's own words in the folder that it names.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.misfortune import House, Misfortune, house
from tests.e2e.ordeal import SETTINGS, undergo

_AT_ONCE = 3
_SHORTEST_SECONDS, _LONGEST_SECONDS = 15, 60


def main() -> int:
    """Run rounds for so many minutes; return 0, or 1 after a round that failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {arguments.seed}, logs in {folder}", flush=True)
    chance = random.Random(arguments.seed)
    until = time.monotonic() + arguments.minutes * 60
    with house(folder, **SETTINGS) as service:
        while time.monotonic() < until:
            chosen = chance.sample(_misfortunes(service), _AT_ONCE)
            try:
                undergo(service, chance.uniform(_SHORTEST_SECONDS, _LONGEST_SECONDS), *chosen)
            except AssertionError as error:
                print(f"\n{', '.join(each.name for each in chosen)}: {error}", file=sys.stderr)
                return 1
    return 0


def _misfortunes(service: House) -> list[Misfortune]:
    return [
        service.killed("worker", every=3),
        service.killed("web", every=2),
        service.killed("scheduler", every=3),
        service.worker_frozen(),
        service.redis_emptied(every=0.3),
        service.redis_frozen(),
        service.connections_terminated(every=1),
        service.postgres_restarted(every=10),
    ]


if __name__ == "__main__":
    sys.exit(main())
