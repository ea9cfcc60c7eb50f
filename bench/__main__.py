"""`make bench`, or `python -m bench [--quick] [PART …]`: measure, print a line a figure, keep all.

Everything is started by the bench on 127.0.0.1, on stores of its own under `.data/bench`, and ended
by it. The whole takes some forty minutes on two cores.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from app import clock
from bench import lab, results
from bench.parts import PARTS
from bench.processes import ROOT, BenchError
from bench.scale import FULL, QUICK, Scale
from dev.refusal import CannotStart

_FOLDER = ROOT / ".data" / "bench"


def main() -> int:
    """Run the parts that are asked for; return 0, or not after one line that says what happened."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="less of all, in about a minute")
    asked = parser.parse_args()
    unknown = [part for part in asked.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}: choose of {', '.join(PARTS)}")
    try:
        _measure(asked.parts or list(PARTS), QUICK if asked.quick else FULL)
    except (BenchError, CannotStart) as error:
        print(f"bench: {error} (logs: {_FOLDER.relative_to(ROOT)})", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    return 0


def _measure(parts: Sequence[str], scale: Scale) -> None:
    began, steady, stolen = clock.now(), time.monotonic(), results.stolen_seconds()
    figures: list[dict[str, Any]] = []
    with lab.opened(_FOLDER) as place:
        about = results.machine(place)
        print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
        for part in parts:
            for figure in PARTS[part](place, scale):
                print(figure.line(), flush=True)
                figures.append({"part": part, **figure.as_json()})
    seconds = time.monotonic() - steady
    # What a hypervisor takes stops everything for tens of milliseconds at a time.
    about["stolen"] = f"{(results.stolen_seconds() - stolen) / seconds:.2f} processors"
    file = results.write(began, about, sys.argv[1:], figures)
    print(f"{seconds:.0f} s, stolen {about['stolen']}; kept in {file.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
