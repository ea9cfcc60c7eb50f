"""C2SP tlog-witness, the log's side: the request `add-checkpoint` and its response."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.core.anchoring import checkpoint_round
from app.core.anchoring.checkpoint_round import NoAnswer
from app.ledger.merkle import MAX_SIZE
from app.ledger.notes import (
    MAX_SIGNATURES,
    Malformed,
    Note,
    Signature,
    Unverified,
    VerifierKey,
    encode_base64,
)
from app.lib.outbound.client import Outbound

_SIZE = re.compile(rb"(0|[1-9][0-9]{0,18})\n")
_MOST_SECONDS = 253_402_300_799  # the last that a calendar of four-digit years has


@dataclass(frozen=True)
class Cosigned:
    """The lines of a 200 by keys that were asked for."""

    lines: tuple[Signature, ...]


@dataclass(frozen=True)
class Elsewhere:
    """A 409: the witness is at another size than `old`, or holds another root of this size.

    None: it did not name its size, as some do not for another root.
    """

    size: int | None


@dataclass(frozen=True)
class Inconsistent:
    """A 422: what the witness cosigned before is not how this checkpoint's tree begins."""


@dataclass(frozen=True)
class Refused:
    """Any other answer, or none; the text explains."""

    detail: str


Answer = Cosigned | Elsewhere | Inconsistent | Refused


def add_checkpoint(
    outbound: Outbound,
    url: str,
    old_size: int,
    proof: Sequence[bytes],
    note: bytes,
    keys: Sequence[VerifierKey],
) -> Answer:
    """Submit a checkpoint to the witness with this submission prefix; return its answer.

    `proof` leads from `old_size` to the checkpoint's size. Lines by other than `keys` are ignored.
    """
    lines = [f"old {old_size}", *map(encode_base64, proof), ""]
    body = "".join(f"{line}\n" for line in lines).encode() + note
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    try:
        reply = checkpoint_round.post(outbound, f"{url.rstrip('/')}/add-checkpoint", body, headers)
        if reply.status == 409:
            match = _SIZE.fullmatch(reply.body)
            known = match is not None and int(match[1]) <= MAX_SIZE
            return Elsewhere(int(match[1]) if match and known else None)
        if reply.status == 422:
            return Inconsistent()
        if reply.status in _REFUSALS:
            return Refused(_REFUSALS[reply.status])
        return Cosigned(tuple(_lines(reply.ok(), Note.parse(note).text, keys)))
    except NoAnswer as error:
        return Refused(str(error))
    except (Malformed, Unverified) as error:
        return Refused(f"Its cosignature cannot be taken: {error}")


def holds(key: VerifierKey, note: bytes, line: str) -> bool:
    """Whether a stored line is what a witness with this key may answer about a checkpoint's note.

    Of an algorithm that is not checked here it need only name the key.
    """
    try:
        signature = Signature.parse(line)
        _check(key, Note.parse(note).text, signature)
    except (Malformed, Unverified):
        return False
    return key.made(signature)


_REFUSALS = {
    400: "It took the request for a malformed one (400).",
    403: "It knows this log by another key (403).",
    404: "It does not know this log (404), or its URL is wrong.",
}


def _lines(body: bytes, text: str, keys: Sequence[VerifierKey]) -> list[Signature]:
    """Return the lines by these keys, each key's first, those that can be checked checked."""
    try:
        *lines, end = body.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise Malformed("The answer is not UTF-8.") from None
    if end or not 0 < len(lines) <= MAX_SIGNATURES:
        raise Malformed("The answer is not signature lines.")
    found: dict[VerifierKey, Signature] = {}
    for signature in map(Signature.parse, lines):
        key = next((key for key in keys if key.made(signature)), None)
        if key is not None and key not in found:
            _check(key, text, signature)
            found[key] = signature
    return list(found.values())


def _check(key: VerifierKey, text: str, signature: Signature) -> None:
    """Raise `Unverified` for a line that can be checked, and does not hold or has no time."""
    if key.checkable:
        seconds = key.verify(text, signature).seconds
        if seconds is None or not 0 < seconds <= _MOST_SECONDS:
            raise Unverified("It has no time.")
