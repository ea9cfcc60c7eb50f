"""Cosigning: each witness of the policy that has a URL is asked for each tick's checkpoint.

Each by a job of its own, so that one that hangs or fails keeps none of the others waiting. A
witness cosigns only what grew out of all that it cosigned before. So if it has seen a larger log
than was ever published here, or one that this log did not grow out of, then somebody published
another log with our key: a copy that runs beside this database, or what it forgot when it was
restored. That is an alarm, until the witness accepts what is published here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from uuid import UUID

from sqlalchemy.orm import Session

from app.core import jobs
from app.core.anchoring import asking, tick, tlog_witness, troubles
from app.core.anchoring.tlog_witness import Answer, Cosigned, Elsewhere, Inconsistent
from app.core.jobs import Errand, Failed, Step
from app.core.log import proofs
from app.core.log.publication import Published
from app.database import cursor, database_now
from app.ledger.policy import Policy, Witness
from app.lib.outbound import Outbound
from app.models import Job

KIND = "cosign_checkpoint"

# Somebody else may submit our checkpoints too, so the witness may have moved on again.
_MOST_CONFLICTS = 3

_IS_COSIGNED = """
SELECT FROM checkpoint_cosignatures
 WHERE generation = %s AND size = %s AND name = %s AND key_hash = %s
"""
_NEWEST = """
SELECT size FROM checkpoint_cosignatures
 WHERE generation = %s AND name = %s AND key_hash = %s ORDER BY size DESC LIMIT 1
"""
_STORE = """
INSERT INTO checkpoint_cosignatures (generation, size, name, key_hash, line, cosigned_at)
VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
_SINCE = """
SELECT published_at FROM checkpoints
 WHERE generation = %s AND size > %s AND note IS NOT NULL ORDER BY size LIMIT 1
"""


def asked(policy: Policy | None) -> Sequence[Witness]:
    """Return the witnesses of a policy that can be asked."""
    return [] if policy is None else [each for each in policy.witnesses if each.url is not None]


def part(witness: Witness) -> str:
    """Return what a witness is called where its troubles are told."""
    return f"witness {_identity(witness)}"


def look(session: Session, policy: Policy | None, last: Published) -> None:
    """Enqueue, for each witness that has not cosigned a tick's checkpoint, that it is asked."""
    for each in asked(policy):
        if not _is_cosigned(session, last, each):
            identity = _identity(each)
            since = partial(_since, session, last, each)
            order = partial(tick.order, session, last, kind=KIND, key=identity, witness=identity)
            order(part=part(each), since=since)


@dataclass(frozen=True)
class _Visit:
    """One call on a witness: what is submitted, from which size on, and how often it conflicted."""

    last: Published
    witness: Witness
    old_size: int
    conflicts: int
    last_try: bool


@dataclass(frozen=True)
class Cosigner:
    """Asks the witnesses of one policy."""

    outbound: Outbound
    policy: Policy | None

    def step(self, session: Session, _tenant_id: UUID, job: Job) -> Step | Errand[Answer]:
        """Have the witness of this job cosign the checkpoint of the job's tick.

        If it is beyond that already, it can cosign none but the newest.
        """
        identity = jobs.args_of(job)["witness"]
        witness = next((each for each in asked(self.policy) if _identity(each) == identity), None)
        last = tick.checkpoint(session, job)
        if witness is None or last is None or _is_cosigned(session, last, witness):
            return Step(None, {})
        old_size, conflicts = _begin(session, last, witness, job.cursor)
        if old_size > last.checkpoint.size:
            last = proofs.newest(session)
            if _is_cosigned(session, last, witness):
                return Step(None, {})
        visit = _Visit(last, witness, old_size, conflicts, asking.was_last(job))
        proof = proofs.consistency(session, last, old_size, last.checkpoint.size)
        return Errand(
            lambda: self._ask(visit, proof), lambda then, said: _record(then, visit, said)
        )

    def _ask(self, visit: _Visit, proof: Sequence[bytes]) -> Answer:
        keys = [each.key for each in self.policy.witnesses] if self.policy else []
        url = visit.witness.url or ""
        said = tlog_witness.add_checkpoint(
            self.outbound, url, visit.old_size, proof, visit.last.note, keys
        )
        own = visit.witness.key
        if isinstance(said, Cosigned) and not any(own.made(line) for line, _ in said.lines):
            return tlog_witness.Refused("It answered without a line by its own key.")
        return said


def _record(session: Session, visit: _Visit, said: Answer) -> Step | Failed:
    size = visit.last.checkpoint.size
    match said:
        case Cosigned(lines):
            for line, seconds in lines:
                at = None if seconds is None else datetime.fromtimestamp(seconds, UTC)
                values = (line.name, line.key_hash, str(line), at)
                cursor(session).execute(_STORE, (visit.last.generation.number, size, *values))
            troubles.end(session, part(visit.witness))
            return Step(None, {"size": size})
        case Inconsistent():
            return _alarm(
                session,
                visit,
                f"It says (422) that the log of size {visit.old_size} which it cosigned is not how"
                f" ours of size {size} begins.",
            )
        case Elsewhere(theirs):
            return _conflict(session, visit, theirs)
        case tlog_witness.Refused(detail):
            return _failed(session, visit, detail)


def _conflict(session: Session, visit: _Visit, theirs: int | None) -> Step | Failed:
    """Go on from where the witness is, if it can be there by what was published here."""
    newest, size = proofs.newest(session).checkpoint.size, visit.last.checkpoint.size
    # It has said that it is at this very size, so what it disputes is the root.
    if visit.old_size == size and theirs in (size, None):
        return _alarm(session, visit, f"It cosigned another log of ours of size {size}.")
    if theirs is None:
        return _failed(session, visit, "It answered 409 without saying at which size it is.")
    if theirs > newest:
        return _alarm(
            session,
            visit,
            f"It cosigned a log of ours of size {theirs}, and {newest} is all that was published.",
        )
    if visit.conflicts >= _MOST_CONFLICTS:
        return _failed(session, visit, "It is at another size each time it is asked.")
    return Step(f"{theirs} {visit.conflicts + 1}", {"from": theirs})


def _failed(session: Session, visit: _Visit, detail: str) -> Failed:
    if visit.last_try or tick.is_late(session, visit.last):
        since = _since(session, visit.last, visit.witness)
        troubles.begin(session, part(visit.witness), since, detail)
    return Failed(detail, for_good=visit.last_try)


def _alarm(session: Session, visit: _Visit, detail: str) -> Failed:
    since = _since(session, visit.last, visit.witness)
    troubles.begin(session, part(visit.witness), since, detail, alarm=True)
    return Failed(detail, for_good=True)


def _since(session: Session, last: Published, witness: Witness) -> datetime:
    """Return when the first checkpoint was published that the witness has not cosigned."""
    place = (last.generation.number, _cosigned(session, last, witness))
    row = cursor(session).execute(_SINCE, place).fetchone()
    return database_now(session) if row is None else row[0]


def _begin(
    session: Session, last: Published, witness: Witness, place: str | None
) -> tuple[int, int]:
    """Return the size to go on from, and how many conflicts there were in this job."""
    if place is None:
        return _cosigned(session, last, witness), 0
    size, _, conflicts = place.partition(" ")
    return int(size), int(conflicts)


def _cosigned(session: Session, last: Published, witness: Witness) -> int:
    """Return the largest size of this log that the witness is known to have cosigned."""
    key = witness.key
    values = (last.generation.number, key.name, key.key_hash)
    row = cursor(session).execute(_NEWEST, values).fetchone()
    return 0 if row is None else int(row[0])


def _is_cosigned(session: Session, last: Published, witness: Witness) -> bool:
    place = (last.generation.number, last.checkpoint.size)
    values = (*place, witness.key.name, witness.key.key_hash)
    return cursor(session).execute(_IS_COSIGNED, values).fetchone() is not None


def _identity(witness: Witness) -> str:
    return f"{witness.key.name}+{witness.key.key_hash.hex()}"
