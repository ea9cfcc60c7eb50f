"""A policy's quorum: as a condition in SQL, and verified on stored cosignatures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from app.core.log import publication
from app.core.log.publication import Published
from app.database import Tx, cursor
from app.ledger.notes import Malformed, Note, Signature, Unverified, VerifierKey
from app.ledger.policy import NONE, Policy, Witness

_LINES = """
SELECT line FROM checkpoint_cosignatures WHERE generation = %s AND size = %s
 ORDER BY created_at, name, key_hash
"""
# Of the newest rounds of witnesses: those that a reader may be shown in place of the newest.
_ROUNDS = 4
_FRESH = timedelta(minutes=5)
_RECENT = """
SELECT c.size, array_agg(s.line)
  FROM (SELECT generation, size, line FROM checkpoint_cosignatures
         WHERE generation = %s ORDER BY size DESC LIMIT %s) AS s
  JOIN checkpoints AS c ON c.generation = s.generation AND c.size = s.size
 WHERE c.published_at > clock_timestamp() - %s::interval
 GROUP BY c.size ORDER BY c.size DESC
"""


@dataclass(frozen=True)
class Condition:
    """The quorum as an SQL condition on one checkpoint's cosignatures: for HAVING, by size."""

    sql: str
    values: tuple[object, ...]


def condition(policy: Policy | None) -> Condition | None:
    """Write a policy's quorum; None without one, or for a quorum of no witness."""
    if policy is None or policy.quorum == NONE:
        return None
    written = {each.name: _cosigned(each) for each in policy.witnesses}
    for group in policy.groups:
        members = [written[name] for name in group.members]
        counted = " + ".join(f"({each.sql})::int" for each in members)
        values = tuple(value for each in members for value in each.values)
        written[group.name] = Condition(f"{counted} >= {group.threshold}", values)
    return written[policy.quorum]


def is_met(policy: Policy, note: bytes, lines: Iterable[str]) -> bool:
    """Say whether these lines make the quorum for a checkpoint's note: each signature checked."""
    text = Note.parse(note).text
    keys = [each.key for each in policy.witnesses]
    signers = {_check(text, line, keys)[1] for line in lines}
    return policy.is_met_by(key for key in signers if key is not None)


def presentable(policy: Policy | None, at: Published, lines: Iterable[str]) -> tuple[str, ...]:
    """Return the lines but those for which a verifier refuses all that they are given with.

    These are malformed, in the name of a witness that did not sign them, or in the log's own.
    """
    text = Note.parse(at.note).text
    witnesses = () if policy is None else policy.witnesses
    log = at.generation.verifier_key
    keys = [log, *(each.key for each in witnesses if each.key.checkable)]
    checked = ((line, *_check(text, line, keys)) for line in lines)
    return tuple(line for line, is_good, key in checked if is_good and key != log)


def newest_met(tx: Tx, policy: Policy | None, last: Published) -> Published:
    """Return the newest checkpoint with the policy's quorum, of the last minutes; else `last`.

    A busy log publishes each second and is cosigned each minute: a monitor with the policy would
    find no quorum on the newest but by chance. Where the witnesses are away, it sees the newest.
    """
    if policy is None or policy.quorum == NONE:
        return last
    most = _ROUNDS * len(policy.witnesses)
    values = (last.generation.number, most, _FRESH)
    for size, lines in cursor(tx).execute(_RECENT, values).fetchall():
        found = publication.at(tx, last.generation, size)
        if found and found.is_intact and is_met(policy, found.note, lines):
            return found
    return last


def lines(tx: Tx, at: Published) -> list[str]:
    """Return the stored cosignatures on a checkpoint, not verified."""
    place = (at.generation.number, at.checkpoint.size)
    return [row[0] for row in cursor(tx).execute(_LINES, place).fetchall()]


def cosigned(tx: Tx, policy: Policy | None, at: Published) -> bytes:
    """Return a checkpoint's note with the cosignatures that there are so far.

    As witnesses answered them: each is a line of the note (C2SP tlog-witness, tlog-cosignature).
    """
    if not (found := presentable(policy, at, lines(tx, at))):
        return at.note
    return bytes(Note.parse(at.note).with_signatures(map(Signature.parse, found)))


def _cosigned(witness: Witness) -> Condition:
    # A cosignature by a key of another algorithm cannot be verified, so it does not count.
    if not witness.key.checkable:
        return Condition("false", ())
    values = (witness.key.name, witness.key.key_hash)
    return Condition("bool_or(name = %s AND key_hash = %s)", values)


def _check(text: str, line: str, keys: Sequence[VerifierKey]) -> tuple[bool, VerifierKey | None]:
    """Return whether a line is one that no verifier refuses, and which of these keys signed it."""
    try:
        signature = Signature.parse(line)
        key = next((key for key in keys if key.made(signature)), None)
        if key is not None:
            key.verify(text, signature)
    except (Malformed, Unverified):
        return False, None
    return True, key
