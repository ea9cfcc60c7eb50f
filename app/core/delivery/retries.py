"""Retry policy: the verdict on one attempt, from its response alone.

Connection and TLS errors, timeouts, 429 and 5xx are the endpoint's fault: all of its deliveries
wait. Any other refusal concerns that delivery alone.
"""

import enum
import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

JITTER = 0.2
LONGEST_RETRY_AFTER = timedelta(hours=24)
SLOW_DOWN = frozenset({429, 502, 503, 504})
GONE = 410

# Times of the years 2001 to 2286, as some receivers write them.
_EPOCH_SECONDS = (10**9, 10**10)


class Blame(enum.StrEnum):
    """The side at fault for a failure; `NOBODY`: success, `US`: never held against the receiver."""

    NOBODY = "nobody"
    US = "us"
    ENDPOINT = "endpoint"
    DELIVERY = "delivery"


@dataclass(frozen=True)
class Verdict:
    """The effect of an attempt on its delivery and its lane.

    `wait` is the backoff until the next scheduled attempt, None after the last. `lane_wait` is the
    receiver's Retry-After, for this delivery and its whole lane. `gone`: the receiver answered 410
    Gone. `schedule_over`: the delivery has used up its attempts, or the time that its schedule
    spans.
    """

    status: str
    blame: Blame
    wait: timedelta | None = None
    lane_wait: timedelta | None = None
    gone: bool = False
    schedule_over: bool = False

    @property
    def row_wait(self) -> timedelta | None:
        """The delivery's wait until its next attempt: at least the receiver's Retry-After."""
        return None if self.wait is None else max(self.wait, self.lane_wait or self.wait)


@dataclass(frozen=True, kw_only=True)
class Attempted:
    """A finished attempt and its verdict; times are the database's.

    `number` counts the delivery's attempts from 1. `probe`: it was the probe of a pause.
    `status_code` is None without a response.
    """

    verdict: Verdict
    number: int
    probe: bool
    started_at: datetime
    ended_at: datetime
    status_code: int | None = None
    total_ms: float | None = None


def judge(
    status_code: int | None,
    retry_after: str | None,
    *,
    attempt: int,
    schedule: Sequence[float],
    now: datetime,
    age: timedelta = timedelta(0),
    ours: bool = False,
) -> Verdict:
    """Return the verdict on an attempt.

    `status_code` is None without a response; `ours` says that the worker was lost before one could
    come. `attempt` counts from 1; `schedule` holds the seconds before each attempt, so the wait
    after attempt n is its element n. `age` is the delivery's. 2xx alone is success.
    """
    if status_code is not None and 200 <= status_code < 300:
        return Verdict("succeeded", Blame.NOBODY)
    endpoint = status_code is None or status_code == 429 or status_code >= 500
    blame = Blame.US if ours else Blame.ENDPOINT if endpoint else Blame.DELIVERY
    if status_code == GONE:
        return Verdict("failed", blame, gone=True)
    asked = None
    if status_code in SLOW_DOWN and retry_after is not None:
        asked = parse_retry_after(retry_after, now)
    if attempt >= len(schedule):
        return Verdict("failed", blame, lane_wait=asked, schedule_over=True)
    jitter = random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311
    wait = timedelta(seconds=schedule[attempt] * jitter)
    over = age >= timedelta(seconds=sum(schedule) * (1 + JITTER))
    return Verdict("retrying", blame, wait=wait, lane_wait=asked, schedule_over=over)


def parse_retry_after(value: str, now: datetime) -> timedelta | None:
    """Parse a Retry-After header, seconds or HTTP date (RFC 9110 section 10.2.3); None if neither.

    A number that would be decades is a date too, in seconds since 1970. Never negative and never
    over 24 hours.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        seconds = int(text[:20])
        if _EPOCH_SECONDS[0] <= seconds < _EPOCH_SECONDS[1]:
            wait = datetime.fromtimestamp(seconds, UTC) - now
        else:
            wait = timedelta(seconds=min(seconds, 10**7))
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    return min(max(wait, timedelta(0)), LONGEST_RETRY_AFTER)


# Parts that differ between two failures of one cause, longest patterns first.
_DIFFERENT = (
    (re.compile(r"https?://[^\s'\"<>]+"), "<url>"),
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\b[a-z]{3}_[0-9a-f]{32}\b"), "<id>"),
    (
        re.compile(r"(?<![\w:])(?=[0-9a-f:]*::|([0-9a-f]+:){7})[0-9a-f:]+", re.IGNORECASE),
        "<address>",
    ),
    (re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b"), "<address>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", re.IGNORECASE), "<id>"),
    (re.compile(r"\d+(\.\d+)?"), "<n>"),
)
# An error quotes at most a line of the receiver's; differences beyond this length are ignored.
_CHARACTERS = 300


def normalise(error: str | None) -> str | None:
    """Return an error's text without the parts that differ between attempts."""
    if error is None:
        return None
    text = " ".join(error.split())[:_CHARACTERS]
    for pattern, name in _DIFFERENT:
        text = pattern.sub(name, text)
    return text


def fingerprint(outcome: str, status_code: int | None, error: str | None) -> int:
    """Return the fingerprint of a failure: the same in every process and release, never 0."""
    text = f"{outcome}\n{status_code}\n{normalise(error)}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
    return number or 1
