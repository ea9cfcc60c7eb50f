"""Identifiers: UUID version 7 inside, `<prefix>_<32 hex>` outside.

A version 7 UUID begins with its time in milliseconds (RFC 9562 section 5.7): rows sort by age, and
tables are partitioned by id. They are made here, since older databases cannot; `add_findings`
alone joins its own moment and random halves of ours.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from uuid import UUID

from app.lib.crypto.randomness import random_bytes

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)
# Callers send ids of any time, and a `datetime` ends with the year 9999.
_LAST_MILLISECOND = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_RANDOM_BITS = (1 << 62) - 1
_VERSION = 0x7 << 76
_VARIANT = 0x2 << 62
# What stands for the version in the key of a webhook's lane.
_LANE = 76
MOST_LANES = 16
_OF_A_PERSON = 8
_TEXT = re.compile(r"([a-z]{3})_([0-9a-f]{32})", re.ASCII)


def new(at: datetime | None = None) -> UUID:
    """Return a fresh version 7 UUID.

    `at` is the moment it carries, for rows whose `created_at` must agree with their id; by default
    this host's now. The 12 bits after the milliseconds are their fraction (RFC 9562 section 6.2,
    method 3), so ids that one process makes in a row sort in that order; 62 bits are random.
    """
    nanoseconds = time.time_ns() if at is None else (at - _EPOCH) // _MICROSECOND * 1000
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    fraction = (rest << 12) // 1_000_000
    moment = (milliseconds & (2**48 - 1)) << 80 | _VERSION | fraction << 64
    return UUID(int=moment | _VARIANT | int.from_bytes(random_bytes(8), "big") & _RANDOM_BITS)


def tails(count: int) -> list[str]:
    """Return the random halves (16 hex digits) of `count` ids of one moment, ascending.

    For database functions, which know the moment and prepend the first half to each.
    """
    random = random_bytes(8 * count)
    return sorted(
        f"{int.from_bytes(random[at : at + 8], 'big') & _RANDOM_BITS | _VARIANT:016x}"
        for at in range(0, 8 * count, 8)
    )


def earliest_at(moment: datetime) -> UUID:
    """Return the smallest id that could have been made at `moment`: a bound for ranges of time."""
    milliseconds = (moment - _EPOCH) // _MILLISECOND
    return UUID(int=min(max(milliseconds, 0), 2**48 - 1) << 80)


def latest_at(moment: datetime) -> UUID:
    """Return the largest id that could have been made at `moment` (ids know its millisecond)."""
    return UUID(int=earliest_at(moment).int | (1 << 80) - 1)


def made_at(identifier: UUID) -> datetime:
    """Return the moment (to the millisecond) that a version 7 UUID contains.

    A moment beyond the year 9999 becomes the end of that year.
    """
    return datetime.fromtimestamp(min(identifier.int >> 80, _LAST_MILLISECOND) / 1000, UTC)


def lane_of(webhook_id: UUID, number: int) -> UUID:
    """Return the key of a webhook's lane, numbered from 1 to 16; the first lane's is its own id.

    Another digit stands in it for the version, so a lane names its webhook.
    """
    digit = (number + 6) % MOST_LANES
    return UUID(int=webhook_id.int & ~(0xF << _LANE) | digit << _LANE)


def lane_number(lane: UUID) -> int:
    """Return the number of a lane, from 1."""
    return ((lane.int >> _LANE) - 7) % MOST_LANES + 1


def webhook_of(lane: UUID) -> UUID:
    """Return the webhook of a lane."""
    return lane_of(lane, 1)


def text(prefix: str, identifier: UUID) -> str:
    """Write an id as callers see it, for example `agt_0192…`; of a lane that of its webhook."""
    return f"{prefix}_{(webhook_of(identifier) if prefix == 'whk' else identifier).hex}"


def of_person(issuer: str, subject: str) -> UUID:
    """Return the id of a person at an OpenID provider: the same each time, of version 8."""
    digest = int.from_bytes(sha256(f"{issuer}\0{subject}".encode()).digest()[:16])
    kept = digest & ~(0xF << 76) & ~(0x3 << 62)
    return UUID(int=kept | _OF_A_PERSON << 76 | _VARIANT)


def of_caller(identifier: UUID) -> str:
    """Write the id of a key, or of a person, which its version tells: `key_…`, `usr_…`."""
    return text("usr" if identifier.version == _OF_A_PERSON else "key", identifier)


def json_schema(prefix: str) -> dict[str, str]:
    """Return the JSON Schema of an id with this prefix, or one of several: `key|usr`."""
    prefix = f"({prefix})" if "|" in prefix else prefix
    return {"type": "string", "pattern": f"^{prefix}_[0-9a-f]{{32}}$"}


def parse(prefix: str, value: str) -> UUID | None:
    """Read an id of this prefix; None when `value` is not one, which is answered as unknown."""
    match = _TEXT.fullmatch(value)
    if match is None or match[1] != prefix:
        return None
    return UUID(hex=match[2])


def is_one(value: str) -> bool:
    """Return whether a text is an id, of any prefix."""
    return _TEXT.fullmatch(value) is not None


def read(prefix: str, stored: str) -> UUID:
    """Read an id that `text` wrote; raises `ValueError` for anything else."""
    found = parse(prefix, stored)
    if found is None:
        raise ValueError(f"this is no id with the prefix {prefix}: {stored}")
    return found
