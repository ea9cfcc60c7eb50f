"""RFC 3339 texts as exact numbers: a float of seconds cannot hold today's nanoseconds."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

_TEXT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_SECOND = 1_000_000_000


# A record's times are read when it is checked, when it is signed, and in each export.
@lru_cache(maxsize=4096)
def unix_nanoseconds(text: str) -> int:
    """Return the moment that an RFC 3339 text names, in nanoseconds since 1970, without rounding.

    Digits beyond nanoseconds are cut off, and a leap second (`:60`) is the second that follows it,
    as on every Unix clock. Raises ValueError for any other text, and for the year 0.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError("This is not a time as RFC 3339 writes it.")
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    fraction, sign, hours, minutes = match.groups()[6:]
    if hour > 23 or minute > 59 or second > 60:
        raise ValueError("This time is not on a clock.")
    days = date(year, month, day).toordinal() - _EPOCH_DAY
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - _offset(sign, hours, minutes)
    return seconds * _SECOND + int((fraction or "")[:9].ljust(9, "0"))


def began(step: Mapping[str, Any]) -> int:
    """Return when a step began, in nanoseconds since 1970."""
    return unix_nanoseconds(step["started_at"])


def ended(step: Mapping[str, Any]) -> float:
    """Return when a step ended, in nanoseconds since 1970; infinity where nobody saw it end."""
    return unix_nanoseconds(step["ended_at"]) if "ended_at" in step else math.inf


def _offset(sign: str | None, hours: str | None, minutes: str | None) -> int:
    if sign is None or hours is None or minutes is None:
        return 0
    if int(hours) > 23 or int(minutes) > 59:
        raise ValueError("This offset from UTC does not exist.")
    seconds = (int(hours) * 60 + int(minutes)) * 60
    return seconds if sign == "+" else -seconds


def text(nanoseconds: int) -> str:
    """Write a moment of 1970 or later as RFC 3339 in UTC, with nine decimals.

    `nanoseconds` since 1970, up to the end of the year 9999.
    """
    seconds, rest = divmod(nanoseconds, _SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
