"""Lane health, a fold over outcomes: the circuit breaker of a webhook.

Five endpoint failures in a row pause the lane (open circuit); each pause ends with one probe
(half-open), and each failed probe doubles the pause. A receiver that answers, but accepts none of
ten different deliveries in a row, is refusing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from app.core.delivery.retries import SLOW_DOWN, Attempted, Blame

FAILURES_BEFORE_PAUSE = 5
LONGEST_PAUSE = timedelta(minutes=10)
HIGHEST_LEVEL = 10
# Cap on the lane's pause by a Retry-After; the delivery that got it waits for its full length.
LONGEST_HOLD = timedelta(minutes=30)
# An attempt is slow from this duration on; a lane is slow until an attempt succeeds sooner.
SLOW_MS = 1000
# A receiver refuses when it accepted none of so many different deliveries, or, if it has accepted
# none yet, none for so long.
REFUSED_DELIVERIES = 10
REFUSED_FOR = timedelta(minutes=10)
# Failures needed as evidence against an endpoint; the last three must be within a day.
FAILURES_OF_EVIDENCE = 10
RECENT_FAILURES = 3
RECENT = timedelta(hours=24)


@dataclass(frozen=True)
class Health:
    """The columns of a lane that outcomes change: its circuit breaker.

    The `unsuccessful_…` are about what was sent since the last 2xx: when its first attempt ended,
    how many attempts, and how many deliveries were first tried. `refused_status` is the last answer
    among them that refuses its delivery alone (3xx, 4xx), `last_failures` the times of the last
    three attempts, oldest first; `warned_at` is when `webhook.failing` was emitted. Since
    `recovering_since` the lane brings waiting rows forward.
    """

    paused_until: datetime | None = None
    pause_level: int = 0
    consecutive_failures: int = 0
    failing_since: datetime | None = None
    last_success_at: datetime | None = None
    slow_at: datetime | None = None
    unsuccessful_since: datetime | None = None
    unsuccessful_attempts: int = 0
    unsuccessful_deliveries: int = 0
    refused_status: int | None = None
    last_failures: Sequence[datetime] = ()
    warned_at: datetime | None = None
    recovering_since: datetime | None = None


def refusing_since(lane: Health, at: datetime) -> datetime | None:
    """Return since when the receiver has accepted nothing; None unless it refuses.

    It refuses when it accepted none of the last ten different deliveries. A retry is no different
    delivery, so what it refuses for its own fault, again and again, is no evidence. A receiver that
    never accepted anything refuses after ten minutes, however few deliveries it got.
    """
    since = lane.unsuccessful_since
    if since is None or lane.refused_status is None:
        return None
    new = lane.last_success_at is None and at - since >= REFUSED_FOR
    return since if new or lane.unsuccessful_deliveries >= REFUSED_DELIVERIES else None


# The same, of a lane `l` in SQL.
REFUSES = f"""
(l.refused_status IS NOT NULL
 AND (l.unsuccessful_deliveries >= {REFUSED_DELIVERIES}
      OR l.last_success_at IS NULL AND l.unsuccessful_since
         <= clock_timestamp() - interval '{REFUSED_FOR.total_seconds():.0f} s'))
"""


def after(health: Health, attempted: Attempted, first_pause: timedelta) -> Health:
    """Return the health after one more attempt; `first_pause` is the length of the first pause."""
    verdict, at = attempted.verdict, attempted.ended_at
    if verdict.blame is Blame.US:
        return health
    if (attempted.total_ms or 0) >= SLOW_MS:
        health = replace(health, slow_at=at)
    if verdict.blame is Blame.NOBODY:
        return _accepted(health, attempted)
    refused = verdict.blame is Blame.DELIVERY
    health = replace(
        health,
        unsuccessful_since=health.unsuccessful_since or at,
        unsuccessful_attempts=health.unsuccessful_attempts + 1,
        unsuccessful_deliveries=health.unsuccessful_deliveries + (attempted.number == 1),
        refused_status=attempted.status_code if refused else health.refused_status,
        last_failures=(*health.last_failures, at)[-RECENT_FAILURES:],
    )
    if refused:
        return _refused(health, at)
    failed = replace(
        health,
        consecutive_failures=health.consecutive_failures + 1,
        failing_since=health.failing_since or at,
    )
    opens = failed.pause_level == 0 and failed.consecutive_failures >= FAILURES_BEFORE_PAUSE
    if attempted.probe or opens:
        return _paused(failed, attempted, first_pause)
    if failed.pause_level > 0:
        # In flight when the pause began: no new evidence, so the pause stays as it is.
        return failed
    return _slowed(failed, attempted, first_pause)


def _accepted(health: Health, attempted: Attempted) -> Health:
    """Forget all failures. After a pause, or when it refused until now, the lane recovers."""
    at = attempted.ended_at
    clean = Health(
        last_success_at=at,
        slow_at=None if (attempted.total_ms or 0) < SLOW_MS else health.slow_at,
        recovering_since=health.recovering_since,
    )
    recovers = health.pause_level > 0 or refusing_since(health, at) is not None
    return replace(clean, recovering_since=at) if recovers else clean


def _refused(health: Health, at: datetime) -> Health:
    """Forget the endpoint's failures, for it answers. After a pause the lane recovers.

    A lane whose receiver refuses recovers with the first 2xx instead.
    """
    answering = replace(
        health, paused_until=None, pause_level=0, consecutive_failures=0, failing_since=None
    )
    if refusing_since(health, at) is not None:
        return answering
    if health.pause_level > 0:
        return replace(answering, recovering_since=at)
    return answering


def only_failed_since(health: Health, at: datetime) -> datetime | None:
    """Return since when the receiver has accepted nothing; None without enough evidence at `at`.

    Either its endpoint has only failed since then, or it refuses. Enough is ten attempts, the last
    three within 24 hours: two failures with quiet days between them prove nothing.
    """
    refusing = refusing_since(health, at)
    attempts = health.unsuccessful_attempts if refusing else health.consecutive_failures
    enough = (
        attempts >= FAILURES_OF_EVIDENCE
        and len(health.last_failures) == RECENT_FAILURES
        and at - health.last_failures[0] <= RECENT
    )
    return (refusing or health.failing_since) if enough else None


def _paused(health: Health, attempted: Attempted, first_pause: timedelta) -> Health:
    pause = min(first_pause * 2**health.pause_level, LONGEST_PAUSE)
    asked = attempted.verdict.lane_wait or timedelta(0)
    return replace(
        health,
        paused_until=attempted.ended_at + max(pause, min(asked, LONGEST_HOLD)),
        pause_level=min(health.pause_level + 1, HIGHEST_LEVEL),
        recovering_since=None,
    )


def _slowed(health: Health, attempted: Attempted, first_pause: timedelta) -> Health:
    """Wait as long as the receiver asks; without a Retry-After 1 s, doubled with each failure."""
    if attempted.status_code not in SLOW_DOWN:
        return health
    asked, at = attempted.verdict.lane_wait or timedelta(0), attempted.ended_at
    if asked > LONGEST_HOLD:
        # The cap ends the pause sooner than Retry-After, so it ends with a probe.
        return _paused(health, attempted, first_pause)
    wait = asked or min(timedelta(seconds=2 ** (health.consecutive_failures - 1)), first_pause)
    return replace(health, paused_until=max(at + wait, health.paused_until or at))


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


def concurrency_after(
    before: Concurrency, batch: Sequence[Attempted], most: int, now: datetime
) -> Concurrency:
    """Return the concurrency after one more batch of attempts; `most` is `max_in_flight`.

    `now` is the database's time when the batch is recorded. A worker's estimate of an attempt's end
    may be late, and POSTs that were in flight together would halve twice.

    A batch with a 2xx adds one, in slow start two per 2xx. A batch with a timeout, a failed
    connection, or an answer of 429, 502, 503 or 504 halves instead. Attempts that began before the
    last halving do not halve again: POSTs in flight together fail from one overload.
    """
    allowed, latency_ms = min(before.concurrency, most), before.latency_ms
    for each in batch:
        if each.status_code is not None and (took := each.total_ms) is not None:
            # A moving average (EWMA).
            latency_ms = took if latency_ms is None else latency_ms + (took - latency_ms) * _NEWEST
    if any(
        each.verdict.blame is Blame.ENDPOINT
        and (each.status_code is None or each.status_code in SLOW_DOWN)
        and (before.halved_at is None or each.started_at > before.halved_at)
        for each in batch
    ):
        return Concurrency(max(1, allowed // 2), now, latency_ms)
    good = sum(each.verdict.blame is Blame.NOBODY for each in batch)
    more = good * MORE_AT_FIRST if before.halved_at is None else min(good, 1)
    return Concurrency(min(allowed + more, most), before.halved_at, latency_ms)


def claim_size(latency_ms: float | None) -> int:
    """Return how many rows to claim: those sent in half a second, one if the latency is unknown."""
    if latency_ms is None:
        return 1
    return min(max(1, int(CLAIM_SECONDS * 1000 / max(latency_ms, 1.0))), CLAIM_MOST)
