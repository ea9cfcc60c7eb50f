"""A policy's quorum: as a condition in SQL, and verified on stored cosignatures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.ledger.notes import Malformed, Note, Signature, Unverified, VerifierKey
from app.ledger.policy import NONE, Policy, Witness


@dataclass(frozen=True)
class Condition:
    """What cosignatures of one checkpoint must be there: for HAVING, grouped by size."""

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
    return policy.is_met_by({key for line in lines if (key := _signed(text, line, keys))})


def _cosigned(witness: Witness) -> Condition:
    # What cannot be checked counts for nothing.
    if not witness.key.checkable:
        return Condition("false", ())
    values = (witness.key.name, witness.key.key_hash)
    return Condition("bool_or(name = %s AND key_hash = %s)", values)


def _signed(text: str, line: str, keys: Sequence[VerifierKey]) -> VerifierKey | None:
    try:
        signature = Signature.parse(line)
        key = next((key for key in keys if key.made(signature)), None)
        return None if key is None else key.verify(text, signature).key
    except (Malformed, Unverified):
        return None
