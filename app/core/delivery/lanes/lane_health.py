"""Lane health, a fold over outcomes: the circuit breaker of a webhook.

Five endpoint failures in a row pause the lane (open circuit); each pause ends with one probe
(half-open), and each failed probe doubles the pause. An endpoint is failing until it answers 2xx or
refuses a delivery for that delivery's own fault (`Blame.DELIVERY`).
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
# An attempt is slow from this duration on.
SLOW_MS = 1000
# Rows brought forward in one transaction.
FORWARD_AT_ONCE = 500
# One attempt lasts at most 15 s; a probe whose worker died must not hold the lane for much longer.
PROBE_TIME = timedelta(seconds=20)
# Failures needed as evidence against an endpoint; the last three must be within a day.
FAILURES_OF_EVIDENCE = 10
RECENT_FAILURES = 3
RECENT = timedelta(hours=24)


@dataclass(frozen=True)
class Health:
    """The columns of a lane that outcomes change: its circuit breaker.

    `last_failures` are the times of the endpoint's last three failures, oldest first; `warned_at`
    is when `webhook.failing` was emitted. `recovering` is how many waiting rows may be brought
    forward together, 0 unless the lane recovers (`recovery.bring_forward`, which advances
    `recovered_through`).
    """

    paused_until: datetime | None = None
    pause_level: int = 0
    consecutive_failures: int = 0
    failing_since: datetime | None = None
    last_success_at: datetime | None = None
    slow_at: datetime | None = None
    last_failures: Sequence[datetime] = ()
    warned_at: datetime | None = None
    recovering: int = 0
    recovering_since: datetime | None = None
    recovered_through: datetime | None = None


def after(health: Health, attempted: Attempted, first_pause: timedelta) -> Health:
    """Return the health after one more attempt; `first_pause` is the length of the first pause."""
    verdict, at = attempted.verdict, attempted.ended_at
    if verdict.blame is Blame.US:
        return health
    if verdict.blame is Blame.NOBODY:
        slow_at = None if (attempted.total_ms or 0) < SLOW_MS else health.slow_at
        return replace(_answering(health, at), last_success_at=at, slow_at=slow_at)
    if verdict.blame is Blame.DELIVERY:
        # The endpoint answered: this failure says nothing about its other deliveries.
        return _answering(health, at)
    failed = _failed(health, at)
    opens = failed.pause_level == 0 and failed.consecutive_failures >= FAILURES_BEFORE_PAUSE
    if attempted.probe or opens:
        return _paused(failed, attempted, first_pause)
    if failed.pause_level > 0:
        # In flight when the pause began: no new evidence, so the pause stays as it is.
        return failed
    return _slowed(failed, attempted, first_pause)


def recover(health: Health, at: datetime) -> Health:
    """Return the health of a lane that starts to recover at `at`, one row at first."""
    return replace(health, recovering=1, recovering_since=at, recovered_through=None)


def _answering(health: Health, at: datetime) -> Health:
    """Reset the failures of an endpoint that answers. After a pause the lane recovers."""
    clean = Health(
        last_success_at=health.last_success_at,
        slow_at=health.slow_at,
        recovering=min(health.recovering + 1, FORWARD_AT_ONCE) if health.recovering else 0,
        recovering_since=health.recovering_since,
        recovered_through=health.recovered_through,
    )
    return recover(clean, at) if health.pause_level > 0 else clean


def only_failed_for(health: Health, period: timedelta, at: datetime) -> bool:
    """Say whether every attempt failed for `period` until `at`, on enough evidence.

    Enough is ten attempts, the last three within 24 hours: two failures with quiet days between
    them prove nothing.
    """
    return (
        health.failing_since is not None
        and at - health.failing_since >= period
        and health.consecutive_failures >= FAILURES_OF_EVIDENCE
        and len(health.last_failures) == RECENT_FAILURES
        and at - health.last_failures[0] <= RECENT
    )


def _failed(health: Health, at: datetime) -> Health:
    if health.consecutive_failures == 0:
        # The previous release did not reset these when the endpoint recovered.
        health = replace(health, failing_since=at, last_failures=(), warned_at=None)
    return replace(
        health,
        consecutive_failures=health.consecutive_failures + 1,
        recovering=max(1, health.recovering // 2) if health.recovering else 0,
        last_failures=(*health.last_failures, at)[-RECENT_FAILURES:],
    )


def _paused(health: Health, attempted: Attempted, first_pause: timedelta) -> Health:
    pause = min(first_pause * 2**health.pause_level, LONGEST_PAUSE)
    asked = attempted.verdict.lane_wait or timedelta(0)
    return replace(
        health,
        paused_until=attempted.ended_at + max(pause, min(asked, LONGEST_HOLD)),
        pause_level=min(health.pause_level + 1, HIGHEST_LEVEL),
        recovering=0,
    )


def _slowed(health: Health, attempted: Attempted, first_pause: timedelta) -> Health:
    if attempted.status_code not in SLOW_DOWN:
        return health
    asked, at = attempted.verdict.lane_wait or timedelta(0), attempted.ended_at
    if asked > LONGEST_HOLD:
        # The cap ends the pause sooner than Retry-After, so it ends with a probe.
        return _paused(health, attempted, first_pause)
    wait = asked or min(timedelta(seconds=2 ** (health.consecutive_failures - 1)), first_pause)
    return replace(health, paused_until=max(at + wait, health.paused_until or at))
