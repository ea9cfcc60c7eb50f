"""`python -m bench.siege [--minutes 30]`: all sieges of the bench at once, and what they leave.

Beside them another tenant asks for its settings. Memory, threads and latency go to a CSV file under
`bench/results/`, which is drawn as SVG in the end. It ends with 1 if the web processes' memory or
threads grew.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from bench import lab
from bench.figures import percentile
from bench.lab import Lab
from bench.processes import ROOT, BenchError, resident_bytes, threads
from bench.traffic import hostile, siege
from dev.refusal import CannotStart

_FOLDER = ROOT / ".data" / "siege"
_RESULTS = ROOT / "bench" / "results"
_EVERY_SECONDS = 5.0
_RATE = 20.0
# Of each siege's connections: all of them at once are more than a process takes.
_PART = 4
_MIB = 1024 * 1024
_GROWTH = 1.2
_WIDTH, _HEIGHT, _MARGIN = 900, 220, 50


@dataclass(frozen=True)
class Sample:
    """What was seen at a moment, so many seconds after the start; latencies in milliseconds."""

    seconds: float
    resident_mib: float
    threads: int
    p50_ms: float
    p99_ms: float
    refused: int


def main() -> int:
    """Besiege a service for so long; return 0 if it stayed as it was."""
    parser = argparse.ArgumentParser(prog="python -m bench.siege", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    asked = parser.parse_args()
    _RESULTS.mkdir(parents=True, exist_ok=True)
    table = _RESULTS / time.strftime("siege-%Y%m%dT%H%M%SZ.csv", time.gmtime())
    samples: list[Sample] = []
    try:
        with lab.opened(_FOLDER) as place, table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(each.name for each in fields(Sample))
            for sample in _besieged(place, asked.minutes * 60):
                samples.append(sample)
                writer.writerow(astuple(sample))
                file.flush()
    except (BenchError, CannotStart) as error:
        print(f"siege: {error}", file=sys.stderr)
        return 1
    finally:
        table.with_suffix(".svg").write_text(_drawn(samples), "utf-8")
    return _judged(samples, table)


def _besieged(place: Lab, seconds: float) -> Iterator[Sample]:
    """Yield samples until the time is up, of the service under all sieges."""
    service = place.service
    quiet, loud = service.new_tenant(), service.new_tenant()
    plan = quiet.gets(hostile.SETTINGS, connections=4, rate=_RATE, seconds=_EVERY_SECONDS)
    # Starts the processes that drive it: beside the sieges that would take them a minute.
    place.load.drive(plan)
    with ExitStack() as stack:
        all_of_them = [*hostile.sieges(service, loud), ("probes", hostile.probes(service.port))]
        for _, each in all_of_them:
            part = replace(each, connections=max(each.connections // _PART, 1))
            stack.enter_context(siege.laid(part))
        # Each of them takes seconds to begin beside the others.
        began = time.monotonic()
        while (now := time.monotonic() - began) < seconds:
            try:
                tally = place.load.drive(plan)
            except (TimeoutError, ConnectionError):
                yield _sample(place, now, [], -1)
            else:
                yield _sample(place, now, tally.latencies_ms, tally.refused)


def _sample(place: Lab, now: float, latencies: Sequence[float], refused: int) -> Sample:
    web = [place.service.running["web"].pid]
    return Sample(
        round(now, 1),
        round(resident_bytes(web) / _MIB, 1),
        threads(web),
        round(percentile(latencies, 50), 1),
        round(percentile(latencies, 99), 1),
        refused,
    )


def _judged(samples: Sequence[Sample], table: Path) -> int:
    """Print what became of it; compare the last third of the time with the second."""
    third = len(samples) // 3
    if not third:
        print("siege: too short to judge", file=sys.stderr)
        return 1
    grown = []
    for name in ("resident_mib", "threads"):
        before, after = (
            sum(getattr(each, name) for each in part) / third
            for part in (samples[third : 2 * third], samples[-third:])
        )
        print(f"{name}: {before:.1f} in the second third, {after:.1f} in the last")
        grown += [name] if after > _GROWTH * before else []
    p99 = percentile([each.p99_ms for each in samples], 50)
    print(f"another tenant's p99 of {_EVERY_SECONDS:g} s, half of the time below: {p99:.0f} ms")
    print(f"kept in {table.relative_to(ROOT)} and .svg; {'GREW' if grown else 'flat'}")
    return 1 if grown else 0


def _drawn(samples: Sequence[Sample]) -> str:
    """Draw memory, threads and latency over time, one below the other."""
    drawn = [
        (name, words)
        for name, words in (
            ("resident_mib", "memory of web, MiB"),
            ("threads", "threads of web"),
            ("p99_ms", "another tenant's GET, p99 of 5 s, ms"),
        )
    ]
    parts = [_panel(samples, name, words, row) for row, (name, words) in enumerate(drawn)]
    size = f'width="{_WIDTH}" height="{_HEIGHT * len(drawn)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _panel(samples: Sequence[Sample], name: str, words: str, row: int) -> str:
    found = [(each.seconds, float(getattr(each, name))) for each in samples]
    found = [(at, value) for at, value in found if value == value]
    last = max((at for at, _ in found), default=1.0) or 1.0
    most = max((value for _, value in found), default=1.0) or 1.0
    top, bottom = row * _HEIGHT + 30, (row + 1) * _HEIGHT - 25
    points = " ".join(
        f"{_MARGIN + at / last * (_WIDTH - 2 * _MARGIN):.1f},"
        f"{bottom - value / most * (bottom - top):.1f}"
        for at, value in found
    )
    right = _WIDTH - _MARGIN
    return (
        f'<text x="{_MARGIN}" y="{top - 10}">{words} (at most {most:g})</text>'
        f'<path d="M{_MARGIN} {top}V{bottom}H{right}" fill="none" stroke="gray"/>'
        f'<text x="{right}" y="{bottom + 15}" text-anchor="end">{last / 60:.1f} min</text>'
        f'<polyline points="{points}" fill="none" stroke="steelblue" stroke-width="1.5"/>'
    )


if __name__ == "__main__":
    sys.exit(main())
