"""How a lane's health moves with the outcomes of its attempts: a pure fold.

Five failures of the endpoint in a row pause the lane; each pause ends with one probe, and each
probe that fails doubles the pause. A receiver that answers 429, 502, 503 or 504 slows its lane at
once.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from app.core.delivery.retries import SLOW_DOWN, Blame, Verdict

FAILURES_BEFORE_PAUSE = 5
LONGEST_PAUSE = timedelta(minutes=10)
HIGHEST_LEVEL = 10
# One attempt lasts at most 15 s; a probe whose worker died must not hold the lane for much longer.
PROBE_TIME = timedelta(seconds=20)


@dataclass(frozen=True)
class Health:
    """The part of a lane that outcomes move."""

    paused_until: datetime | None
    pause_level: int
    consecutive_failures: int
    failing_since: datetime | None
    last_success_at: datetime | None
    slow_at: datetime | None


def after(
    health: Health,
    verdict: Verdict,
    status_code: int | None,
    at: datetime,
    *,
    probe: bool,
    quick: bool,
    first_pause: timedelta,
) -> Health:
    """Return the health after one more attempt that ended at `at`.

    `probe` says that the attempt was the one that a pause allows, `quick` that the answer came
    within a second; `first_pause` is the length of the first pause.
    """
    if verdict.blame is Blame.NOBODY:
        return Health(None, 0, 0, None, at, None if quick else health.slow_at)
    if verdict.blame is Blame.US:
        return health
    failing = replace(health, failing_since=health.failing_since or at)
    if verdict.blame is Blame.DELIVERY:
        # The endpoint answered: nothing here speaks against its other deliveries.
        return replace(failing, paused_until=None, pause_level=0, consecutive_failures=0)
    failed = replace(failing, consecutive_failures=failing.consecutive_failures + 1)
    asked = verdict.lane_wait or timedelta(0)
    if probe or (failed.pause_level == 0 and failed.consecutive_failures >= FAILURES_BEFORE_PAUSE):
        return _paused(failed, at, asked, first_pause)
    if failed.pause_level > 0:
        # Under way when the pause began: it says nothing new, so it lengthens nothing.
        return failed
    return _slowed(failed, status_code, at, asked, first_pause)


def _paused(health: Health, at: datetime, asked: timedelta, first_pause: timedelta) -> Health:
    pause = min(first_pause * 2**health.pause_level, LONGEST_PAUSE)
    return replace(
        health,
        paused_until=at + max(pause, asked),
        pause_level=min(health.pause_level + 1, HIGHEST_LEVEL),
    )


def _slowed(
    health: Health,
    status_code: int | None,
    at: datetime,
    asked: timedelta,
    first_pause: timedelta,
) -> Health:
    if status_code not in SLOW_DOWN:
        return health
    wait = asked or min(timedelta(seconds=2 ** (health.consecutive_failures - 1)), first_pause)
    return replace(health, paused_until=max(at + wait, health.paused_until or at))
