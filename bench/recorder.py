"""`python -m bench.recorder`: what recording costs an agent, with the service away.

It prints the time of an append (a step's beginning or end), and the longest stall of an event loop
on which fifty agents record. Nothing is started but the recorder's own thread.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "client"))

from record_service import Recorder  # noqa: E402  # from this checkout

_RUNS, _STEPS = 500, 10
_AGENTS, _SECONDS = 50, 6.0
_TICK = 0.001
# Nothing listens there: each attempt to send is refused at once.
_AWAY = "http://127.0.0.1:9"


def appends(recorder: Recorder, size: int) -> list[float]:
    """Return the seconds that each append of some runs took; a step has inputs of `size`."""
    took: list[float] = []
    inputs = {"text": "x" * size}

    def timed(act: Callable[[], object]) -> None:
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)

    for number in range(_RUNS):
        record = recorder.session("bench").record("run", f"run {number}")
        timed(record.start)
        for _ in range(_STEPS):
            step = record.step("step", kind="execute_tool", inputs=inputs)
            timed(step.start)
            step.outputs = inputs
            timed(step.end)
        timed(record.end)
    return sorted(took)


async def stalls(recorder: Recorder, *, is_recording: bool) -> list[float]:
    """Return by how long each tick of a loop was late while agents worked on it."""
    until = time.perf_counter() + _SECONDS
    # Agents in step with each other would be one that works fifty times as long.
    chance = random.Random(1)

    async def agent(number: int) -> None:
        while time.perf_counter() < until:
            if is_recording:
                session = recorder.session(f"agent {number}")
                record = session.record("run", "run").start()
                with record.step("step", inputs={"text": "x" * 1000}) as step:
                    await asyncio.sleep(chance.uniform(0.02, 0.08))
                    step.outputs = {"text": "y" * 1000}
                record.end()
            else:
                await asyncio.sleep(chance.uniform(0.02, 0.08))

    late: list[float] = []

    async def clock() -> None:
        while time.perf_counter() < until:
            began = time.perf_counter()
            await asyncio.sleep(_TICK)
            late.append(time.perf_counter() - began - _TICK)

    await asyncio.gather(clock(), *(agent(number) for number in range(_AGENTS)))
    return sorted(late)


def main() -> None:
    """Measure, and print a line a figure."""
    # On the disk where a spool would be: /tmp is in memory on some machines.
    with (
        tempfile.TemporaryDirectory(dir=Path.home()) as folder,
        Recorder("bench", base_url=_AWAY, key="bench", spool=folder) as recorder,
    ):
        for size in (100, 1000, 10_000):
            took = appends(recorder, size)
            said = ", ".join(
                f"{name} {took[int(len(took) * share)] * 1e6:.0f} µs"
                for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999))
            )
            print(f"append, {size} bytes: {said}, longest {took[-1] * 1e3:.1f} ms", flush=True)
        for is_recording in (False, True):
            late = asyncio.run(stalls(recorder, is_recording=is_recording))
            what = "recording" if is_recording else "idle"
            p99 = late[int(len(late) * 0.99)] * 1e3
            print(f"loop {what}: p99 {p99:.1f} ms, longest stall {late[-1] * 1e3:.1f} ms")
        print(recorder.stats())
        recorder.close(0.1)


if __name__ == "__main__":
    main()
