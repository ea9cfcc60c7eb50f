"""Concurrency of a lane, and the size of a claim: pure functions of its answers.

Additive increase, multiplicative decrease, with a slow start (AIMD, as TCP's congestion control in
RFC 5681 section 3.1). Slow but successful answers lower nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from app.core.delivery.retries import SLOW_DOWN, Attempted, Blame

# One POST finds out whether a new receiver hangs.
AT_FIRST = 1
# In slow start each 2xx adds this many: 1, 3, 9, 16 after one, two and three rounds of answers.
MORE_AT_FIRST = 2
CLAIM_MOST = 50
CLAIM_SECONDS = 0.5
# The weight of the newest answer in the average, which follows a change within ten answers.
_NEWEST = 0.2


@dataclass(frozen=True)
class Concurrency:
    """A lane's adaptive concurrency: POSTs at once, and its mean `latency_ms`, None at first.

    `halved_at` is when `concurrency` was last halved; a lane that never was is in slow start.
    """

    concurrency: int = AT_FIRST
    halved_at: datetime | None = None
    latency_ms: float | None = None


def after(before: Concurrency, batch: Sequence[Attempted], most: int, now: datetime) -> Concurrency:
    """Return the concurrency after one more batch of attempts; `most` is `max_in_flight`.

    `now` is the database's time when the batch is recorded. A worker's estimate of an attempt's end
    may be late, and POSTs that were in flight together would halve twice.

    A batch with a 2xx adds one, in slow start two per 2xx. A batch with a timeout, a failed
    connection, or an answer of 429, 502, 503 or 504 halves instead. Attempts that began before the
    last halving do not halve again: POSTs in flight together fail from one overload.
    """
    allowed = min(before.concurrency, most)
    latency_ms = _latency(before.latency_ms, batch)
    if _is_overloaded(before, batch):
        return Concurrency(max(1, allowed // 2), now, latency_ms)
    good = sum(each.verdict.blame is Blame.NOBODY for each in batch)
    more = good * MORE_AT_FIRST if before.halved_at is None else min(good, 1)
    return Concurrency(min(allowed + more, most), before.halved_at, latency_ms)


def claim_size(latency_ms: float | None) -> int:
    """Return how many rows to claim: those sent in half a second, one if the latency is unknown."""
    if latency_ms is None:
        return 1
    return min(max(1, int(CLAIM_SECONDS * 1000 / max(latency_ms, 1.0))), CLAIM_MOST)


def _is_overloaded(before: Concurrency, batch: Sequence[Attempted]) -> bool:
    return any(
        each.verdict.blame is Blame.ENDPOINT
        and (each.status_code is None or each.status_code in SLOW_DOWN)
        and (before.halved_at is None or each.started_at > before.halved_at)
        for each in batch
    )


def _latency(mean: float | None, batch: Sequence[Attempted]) -> float | None:
    """Return the moving average (EWMA) of latencies; unchanged by a batch without an answer."""
    for each in batch:
        if each.status_code is not None and each.total_ms is not None:
            mean = each.total_ms if mean is None else mean + (each.total_ms - mean) * _NEWEST
    return mean
