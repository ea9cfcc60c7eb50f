"""A figure, the bound it stands beside, and how both are written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bound:
    """What a figure is held against, measured in the same run and in the same unit."""

    name: str
    value: float


@dataclass(frozen=True)
class Reach:
    """What a figure is to reach: a least or a most, of the value or of its ratio to the bound."""

    at_least: float | None = None
    at_most: float | None = None
    of_ratio: bool = False

    def reached(self, figure: "Figure") -> bool:
        """Say whether the figure is inside."""
        measured = figure.ratio if self.of_ratio else figure.value
        if measured is None or math.isnan(measured):
            return False
        return (self.at_least is None or measured >= self.at_least) and (
            self.at_most is None or measured <= self.at_most
        )

    def __str__(self) -> str:
        limits = [
            f"{sign} {number(limit)}"
            for sign, limit in (("≥", self.at_least), ("≤", self.at_most))
            if limit is not None
        ]
        return ("ratio " if self.of_ratio else "") + " and ".join(limits)


@dataclass(frozen=True)
class Figure:
    """One thing measured; `unit` follows the number as it is written (`/s`, ` ms`, ` %`)."""

    name: str
    value: float
    unit: str
    bound: Bound | None = None
    reach: Reach | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of its bound."""
        if self.bound is None or not self.bound.value:
            return None
        return self.value / self.bound.value

    def line(self) -> str:
        """Write it, as `deliveries: 4680/s, bare actor 2410/s, ratio 1.94`."""
        parts = [f"{self.name}: {number(self.value)}{self.unit}"]
        if self.bound is not None:
            parts.append(f"{self.bound.name} {number(self.bound.value)}{self.unit}")
        if self.ratio is not None:
            parts.append(f"ratio {self.ratio:.2f}")
        if self.note:
            parts.append(self.note)
        line = ", ".join(parts)
        if self.reach is not None:
            line += f" [{'reaches' if self.reach.reached(self) else 'MISSES'} {self.reach}]"
        return line

    def as_json(self) -> dict[str, Any]:
        """Return all of it, for tools."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit.strip(),
            "bound": None if self.bound is None else vars(self.bound),
            "ratio": self.ratio,
            "reach": None if self.reach is None else vars(self.reach),
            "reached": None if self.reach is None else self.reach.reached(self),
            "note": self.note,
        }


def number(value: float) -> str:
    """Write a number with as many digits as it can be trusted with: three."""
    if not math.isfinite(value):
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed (nearest rank).

    NaN without values.
    """
    if not values:
        return math.nan
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def median(values: Sequence[float]) -> float:
    """Return the 50th percentile."""
    return percentile(values, 50)


def p95(
    name: str, times: Sequence[float], bound: Bound | None = None, reach: Reach | None = None
) -> Figure:
    """Return the 95th percentile of milliseconds, with the median and the worst beside it."""
    note = f"p50 {median(times):.1f}, worst {max(times):.1f} ms"
    return Figure(f"{name}, p95", percentile(times, 95), " ms", bound, reach, note)
