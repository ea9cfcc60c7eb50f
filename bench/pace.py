"""How quick a contender is, and what each thing it does costs.

On a shared machine all rates fall; the processor time stays.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from bench.figures import median
from bench.processes import cpu_seconds


@dataclass(frozen=True)
class Pace:
    """Things done per second, and the time on a core that each took, in microseconds."""

    per_second: float
    cpu_each: float


class Stopwatch:
    """Runs from its making on; `pids` are the processes whose time on the cores counts."""

    def __init__(self, pids: Collection[int]) -> None:
        self._pids = pids
        self._cpu = cpu_seconds(pids)
        self._began = time.monotonic()

    def stop(self, count: int) -> Pace:
        """Return the pace at which `count` things were done."""
        seconds = time.monotonic() - self._began
        return Pace(count / seconds, (cpu_seconds(self._pids) - self._cpu) / count * 1e6)


def middle(paces: Sequence[Pace]) -> Pace:
    """Return the medians of several."""
    return Pace(
        median([pace.per_second for pace in paces]), median([pace.cpu_each for pace in paces])
    )


def milliseconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000
