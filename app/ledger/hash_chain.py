"""The audit chain: each entry holds the hash of the entry before it (a hash chain).

An entry's hash is the SHA-256 of its body, the canonical JSON of its members. `verify` recomputes
both in constant memory. A truncated or rewritten chain agrees with itself: so it takes the head
where the chain must end.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any

from app.lib import canonical_json

GENESIS = "0" * 64
"""The `prev_hash` of entry 1; like every hash within an entry it is hex in lower case."""

FORMER_MEMBERS = frozenset(
    {"action", "actor", "at", "details", "prev_hash", "request_id", "seq", "target", "tenant_id"}
)
"""The members of entries that were appended before they had `outcome` and `origin`."""
MEMBERS = FORMER_MEMBERS | {"origin", "outcome"}


class Outcome(StrEnum):
    """What became of the act that an entry records."""

    SUCCESS = "success"
    REFUSED = "refused"
    FAILED = "failed"


def is_entry(fields: object) -> bool:
    """Say whether parsed JSON has exactly the members of an entry, of today or of before."""
    return isinstance(fields, dict) and fields.keys() in (MEMBERS, FORMER_MEMBERS)


def entry_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return the bytes to hash and store for a new entry: its eleven members, so without `hash`.

    Raises ValueError for other members and for values that could not be read back, TypeError for
    what is no JSON.
    """
    if fields.keys() != MEMBERS:
        raise ValueError(f"An audit entry has exactly the members {', '.join(sorted(MEMBERS))}.")
    body = canonical_json.dumps(dict(fields))
    # An entry that `verify` would refuse must never enter a chain.
    canonical_json.parse(body)
    return body


def draft(fields: Mapping[str, Any]) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the bytes of an entry that has no place in a chain yet, in four pieces.

    Between them belong `at` (without quotes), `prev_hash` (in hex, without quotes) and `seq`;
    `fields` are the other eight members. Raises as `entry_bytes` does.
    """
    whole = {**fields, "at": "", "prev_hash": "", "seq": 0}
    body = entry_bytes(whole)
    # Members are in order, so an object begins as its first members alone do, and ends as its last.
    time = _size(whole, "action", "actor", "at") - len('"}')
    link = len(body) - _size(whole, "request_id", "seq", "target", "tenant_id") - len('"')
    number = len(body) - _size(whole, "target", "tenant_id") - len("0")
    return body[:time], body[time:link], body[link:number], body[number + len("0") :]


def _size(fields: Mapping[str, Any], *names: str) -> int:
    return len(canonical_json.dumps({name: fields[name] for name in names}))


@dataclass(frozen=True)
class Head:
    """How far a chain has come: the number of its newest entry and that entry's hash in hex."""

    seq: int
    hash: str


START = Head(0, GENESIS)


class Reason(StrEnum):
    """Kinds of a chain's first break."""

    MISSING = "missing"  # no entry has this number, though a later one or a head says it was there
    OUT_OF_ORDER = "out_of_order"  # an entry stands here whose number came before
    BEYOND_END = "beyond_end"  # the chain goes on behind the head where it must end
    BAD_HASH = "bad_hash"  # the stored hash is not that of the body
    NOT_JSON = "not_json"
    NOT_CANONICAL = "not_canonical"  # the body is JSON, but not the one form of what it says
    NOT_AN_ENTRY = "not_an_entry"  # the body is not an object with exactly an entry's members
    WRONG_SEQ = "wrong_seq"  # the body has another number than its place
    WRONG_TENANT = "wrong_tenant"
    MISFILED = "misfiled"  # the copies beside the body say something else
    BAD_LINK = "bad_link"  # `prev_hash` is not the hash of the entry before
    OTHER_HEAD = "other_head"  # the chain agrees with itself, but not with a head kept of it


@dataclass(frozen=True)
class Break:
    """The first place where a chain fails, what had to stand there, and what does."""

    seq: int
    reason: Reason
    expected: str
    found: str


Copies = tuple[Any, ...]
"""What stands beside a body to filter by: its action, actor, target (ids), outcome and time."""


def verify(
    entries: Iterable[tuple[int, bytes, bytes, Copies | None]],
    *,
    tenant_id: str,
    end: Head,
    after: Head = START,
) -> Break | None:
    """Recompute a tenant's chain from its rows (seq, body, hash, copies), by seq, up to `end`.

    A row without copies has nothing beside its body. `tenant_id` is as bodies have it (`ten_…`).
    `after` is a head already verified; the rows begin behind it. Returns the first break; None
    where every entry is good and the last one is `end`. From the start, a chain without any entry
    is broken: each begins with entry 1.

    Memory does not grow with the chain, and nothing is read behind the first break.
    """
    seq, link = after.seq, after.hash  # of the newest entry found good
    if seq > end.seq:
        return _beyond(end, seq)
    if seq == end.seq and link != end.hash:
        return _broken(seq, Reason.OTHER_HEAD, end.hash, link)
    for number, body, stored, beside in entries:
        digest = sha256(body).digest()
        if number != seq + 1:
            reason = Reason.MISSING if number > seq + 1 else Reason.OUT_OF_ORDER
            return _broken(seq + 1, reason, seq + 1, number)
        if number > end.seq:
            return _beyond(end, number)
        if digest != stored:
            return _broken(number, Reason.BAD_HASH, stored.hex(), digest.hex())
        found = _examine(number, body, tenant_id, link, beside)
        if found is not None:
            return found
        seq, link = number, digest.hex()
        if seq == end.seq and link != end.hash:
            return _broken(seq, Reason.OTHER_HEAD, end.hash, link)
    if seq < end.seq or seq == 0:
        return _broken(seq + 1, Reason.MISSING, seq + 1, "the end of the chain")
    return None


def _examine(
    seq: int, body: bytes, tenant_id: str, link: str, beside: Copies | None
) -> Break | None:
    """Return what is wrong with a body whose hash is right, at its place in the chain."""
    try:
        entry: Any = canonical_json.parse(body)
    except canonical_json.NotJSON as error:
        return _broken(seq, Reason.NOT_JSON, "canonical JSON", str(error))
    except canonical_json.NotIJSON as error:
        return _broken(seq, Reason.NOT_CANONICAL, "canonical JSON", str(error))
    written = canonical_json.dumps(entry)
    if written != body:
        return _broken(seq, Reason.NOT_CANONICAL, written.decode(), body.decode())
    if not is_entry(entry):
        return _broken(seq, Reason.NOT_AN_ENTRY, ", ".join(sorted(MEMBERS)), body.decode())
    # True equals 1, so the type counts too.
    if type(entry["seq"]) is not int or entry["seq"] != seq:
        return _broken(seq, Reason.WRONG_SEQ, seq, entry["seq"])
    if entry["tenant_id"] != tenant_id:
        return _broken(seq, Reason.WRONG_TENANT, tenant_id, entry["tenant_id"])
    if entry["prev_hash"] != link:
        return _broken(seq, Reason.BAD_LINK, link, entry["prev_hash"])
    if beside is not None and beside != _copies(entry):
        expected = "action, actor, target, outcome and time as its body has them"
        found = ", ".join(str(each) for each in beside if each is not None)
        return _broken(seq, Reason.MISFILED, expected, f"{found} beside it")
    return None


def _copies(entry: Mapping[str, Any]) -> Copies | None:
    match entry:
        case {"actor": {"id": actor}, "target": {"id": target}}:
            return entry["action"], actor, target, entry.get("outcome"), entry["at"]
    return None


def _beyond(end: Head, seq: int) -> Break:
    return _broken(end.seq + 1, Reason.BEYOND_END, f"the end at {end.seq}", seq)


def _broken(seq: int, reason: Reason, *values: object) -> Break:
    """Return a break with what was expected and found; a forger may have put a megabyte there."""
    texts = (value if isinstance(value, str) else repr(value) for value in values)
    return Break(seq, reason, *(text if len(text) <= 200 else f"{text[:200]}…" for text in texts))
