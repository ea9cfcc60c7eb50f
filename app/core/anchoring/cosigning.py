"""Cosigning: a job for each witness of the policy with a URL asks it to cosign a checkpoint.

The request is `add-checkpoint` of C2SP tlog-witness. A witness that has seen a larger log, or one
inconsistent with ours, raises an alarm: the log was forked by a copy, or rolled back. It ends when
the witness accepts our log. Stored cosignatures are verified before they count.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app.core.anchoring import checkpoint_round, incidents
from app.core.anchoring.checkpoint_round import NoAnswer
from app.core.jobs import job_rows
from app.core.jobs.steps import Errand, Failed, Step
from app.core.log import proofs, publication
from app.core.log.publication import Published
from app.database import after_commit, cursor
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
from app.ledger.policy import Policy, Witness
from app.lib.outbound.client import Outbound
from app.models import Job

KIND = "cosign_checkpoint"

# Others may submit our checkpoints too, so the witness may have moved on again.
_MOST_CONFLICTS = 3

_log = structlog.get_logger(__name__)

_LINE = """
SELECT line FROM checkpoint_cosignatures
 WHERE generation = %s AND size = %s AND name = %s AND key_hash = %s
"""
# The very line that was verified: by now another may have replaced it.
_DROP = """
DELETE FROM checkpoint_cosignatures
 WHERE generation = %s AND size = %s AND name = %s AND key_hash = %s AND line = %s
"""
_NEWEST = """
SELECT s.size, s.line, coalesce(c.note, c.unpublished_note) FROM checkpoint_cosignatures AS s
  JOIN checkpoints AS c ON c.generation = s.generation AND c.size = s.size
 WHERE s.generation = %s AND s.name = %s AND s.key_hash = %s
   AND coalesce(c.note, c.unpublished_note) IS NOT NULL
 ORDER BY s.size DESC LIMIT %s
"""
_STORE = """
INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line)
VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""


def asked(policy: Policy | None) -> Sequence[Witness]:
    """Return the witnesses of a policy that can be asked."""
    return [] if policy is None else [each for each in policy.witnesses if each.url is not None]


def part(witness: Witness) -> str:
    """Return the name of a witness in its incidents."""
    return f"witness {_identity(witness)}"


def enqueue_due(session: Session, policy: Policy | None, last: Published) -> None:
    """Enqueue, for each witness that has not cosigned a tick's checkpoint, that it is asked."""
    for each in asked(policy):
        if not _is_cosigned(session, last, each):
            checkpoint_round.order(
                session,
                last,
                kind=KIND,
                key=_identity(each),
                part=part(each),
                since=partial(_since, session, last, each),
                witness=_identity(each),
            )


def enqueue_now(session: Session, policy: Policy, candidate: Published) -> list[str]:
    """Have each witness that has not cosigned a candidate asked at once, and again while it fails.

    Returns their names, each with its last error.
    """
    missing = []
    for each in asked(policy):
        if not _is_cosigned(session, candidate, each):
            name = _identity(each)
            job = checkpoint_round.hurry(session, candidate, kind=KIND, key=name, witness=name)
            missing.append(f"{part(each)}: {job.error or 'It has not answered yet.'}")
    return missing


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


@dataclass(frozen=True)
class _Visit:
    """One call on a witness: what is submitted, from which size on, and how often it conflicted.

    Taken are lines by `keys`, those of the whole policy.
    """

    job: Job
    last: Published
    witness: Witness
    old_size: int
    conflicts: int
    keys: Sequence[VerifierKey]

    def ask(self, outbound: Outbound, proof: Sequence[bytes]) -> Answer:
        """Submit the checkpoint, outside any transaction."""
        url, own = self.witness.url or "", self.witness.key
        answer = add_checkpoint(outbound, url, self.old_size, proof, self.last.note, self.keys)
        if isinstance(answer, Cosigned) and not any(map(own.made, answer.lines)):
            return Refused("It answered without a line by its own key.")
        return answer

    def record(self, session: Session, answer: Answer) -> Step | Failed:
        """Store what the witness answered."""
        size = self.last.checkpoint.size
        match answer:
            case Cosigned(lines):
                for line in lines:
                    self._store(session, line)
                incidents.end(session, part(self.witness))
                return Step(None, {"size": size})
            case Inconsistent():
                return self._alarm(
                    session,
                    f"It says (422) that the log of size {self.old_size} which it cosigned is not"
                    f" how ours of size {size} begins.",
                )
            case Elsewhere(theirs):
                return self._conflict(session, theirs)
            case Refused(detail):
                return checkpoint_round.failed(self.job, detail)

    def _store(self, session: Session, line: Signature) -> None:
        """Store a line, in the place of one that does not hold."""
        key = next(each for each in self.keys if each.made(line))
        before = _line(session, self.last, key)
        place = _place(self.last, key)
        if before is not None and not holds(key, self.last.note, before):
            cursor(session).execute(_DROP, (*place, before))
            number, size, name, _ = place
            event = partial(_log.warning, "cosignature_replaced", generation=number, size=size)
            after_commit(session, partial(event, witness=name))
        cursor(session).execute(_STORE, (*place, str(line)))

    def _conflict(self, session: Session, theirs: int | None) -> Step | Failed:
        """Go on from where the witness is, if it can be there by what was published here."""
        newest, size = _newest_shown(session).checkpoint.size, self.last.checkpoint.size
        # It was at this very size, so what it disputes is the root.
        if self.old_size == size and theirs in (size, None):
            return self._alarm(session, f"It cosigned another log of ours of size {size}.")
        if theirs is None:
            return checkpoint_round.failed(
                self.job, "It answered 409 without saying at which size it is."
            )
        if theirs > newest:
            return self._alarm(
                session,
                f"It cosigned a log of ours of size {theirs}, and {newest} is all that was"
                " published.",
            )
        if self.conflicts >= _MOST_CONFLICTS:
            return checkpoint_round.failed(self.job, "It is at another size each time it is asked.")
        return Step(f"{theirs} {self.conflicts + 1}", {"from": theirs})

    def _alarm(self, session: Session, detail: str) -> Failed:
        since = _since(session, self.last, self.witness)
        incidents.begin(session, part(self.witness), since, detail, alarm=True)
        return Failed(detail, for_good=True)


@dataclass(frozen=True)
class Cosigner:
    """Asks the witnesses of one policy."""

    outbound: Outbound
    policy: Policy | None

    def step(self, session: Session, _tenant_id: UUID, job: Job) -> Step | Errand[Answer]:
        """Have the witness of this job cosign the checkpoint of the job's tick.

        If it is beyond that already, it can cosign none but the newest.
        """
        identity = job_rows.args_of(job)["witness"]
        witness = next((each for each in asked(self.policy) if _identity(each) == identity), None)
        last = checkpoint_round.checkpoint(session, job)
        if witness is None or last is None or _is_cosigned(session, last, witness):
            return Step(None, {})
        if job.cursor is None:
            # The largest size of this log that it is known to have cosigned.
            newest = _newest(session, last, witness)
            old_size = next((size for size, holds in newest.items() if holds()), 0)
            conflicts = 0
        else:
            old_size, conflicts = map(int, job.cursor.split())
        if old_size > last.checkpoint.size:
            last = _newest_shown(session)
            if _is_cosigned(session, last, witness):
                return Step(None, {})
        keys = [each.key for each in self.policy.witnesses] if self.policy else []
        visit = _Visit(job, last, witness, old_size, conflicts, keys)
        proof = proofs.consistency(session, last, old_size, last.checkpoint.size)
        return Errand(lambda: visit.ask(self.outbound, proof), visit.record)


def _since(session: Session, last: Published, witness: Witness) -> datetime:
    """Return when the first checkpoint was published that the witness has not cosigned."""
    newest = _newest(session, last, witness)
    return checkpoint_round.unvouched_since(
        session, last.generation.number, list(newest), lambda size: newest[size]()
    )


def _newest_shown(session: Session) -> Published:
    """Return the newest that any witness was shown."""
    return publication.current_candidate(session) or proofs.newest(session)


def _newest(session: Session, last: Published, witness: Witness) -> dict[int, Callable[[], bool]]:
    """Return the newest sizes of which there is a line of the witness, and whether each holds."""
    key = witness.key
    values = (last.generation.number, key.name, key.key_hash, checkpoint_round.MOST_VERIFIED)
    rows = cursor(session).execute(_NEWEST, values).fetchall()
    return {size: partial(holds, key, bytes(note), line) for size, line, note in rows}


def _is_cosigned(session: Session, last: Published, witness: Witness) -> bool:
    line = _line(session, last, witness.key)
    return line is not None and holds(witness.key, last.note, line)


def _line(session: Session, last: Published, key: VerifierKey) -> str | None:
    """Return the stored line of a key on a checkpoint, not verified."""
    row = cursor(session).execute(_LINE, _place(last, key)).fetchone()
    return None if row is None else str(row[0])


def _place(last: Published, key: VerifierKey) -> tuple[int, int, str, bytes]:
    return last.generation.number, last.checkpoint.size, key.name, key.key_hash


def _identity(witness: Witness) -> str:
    return f"{witness.key.name}+{witness.key.key_hash.hex()}"
