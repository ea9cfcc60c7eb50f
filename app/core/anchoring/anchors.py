"""The anchors of a tenant's chain, each with the best evidence for it."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cryptography.x509 import Certificate
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.anchoring import cosigning, monitor
from app.core.anchoring.evidence import Chooser, Reach, Voucher
from app.core.anchoring.timestamping import PART as TIMESTAMPS
from app.core.audit import chain
from app.core.log import proofs, publication
from app.database import cursor
from app.errors import LogDamaged
from app.ledger.hash_chain import START
from app.ledger.policy import Policy
from app.lib.crypto.sealing import MasterKeys
from app.models import AnchoringTrouble, AuditAnchor, Tenant
from app.settings import Settings


def count(session: Session, tenant_id: UUID, after: int, through: int) -> int:
    """Return how many anchors the tenant has of entries behind `after` up to `through`."""
    found = select(func.count()).where(
        AuditAnchor.tenant_id == tenant_id, AuditAnchor.seq > after, AuditAnchor.seq <= through
    )
    return session.execute(found).scalar_one()


@dataclass(frozen=True)
class Covered:
    """The newest entry whose head is in the published log, and the kind of evidence for it.

    Before the first anchor `through` is None. `unanchored_since` is the time of the first entry
    behind it; None if there is none.
    """

    through: int | None
    vouchers: tuple[Voucher, ...]
    unanchored_since: datetime | None


# Newest first: those that wait for the log are few.
_PLACED = """
SELECT a.seq, l.leaf_index FROM audit_anchors AS a
  JOIN log_leaves AS l ON l.leaf_hash = a.leaf_hash
 WHERE a.tenant_id = %s AND l.generation = %s AND l.leaf_index < %s
 ORDER BY a.seq DESC LIMIT 1
"""
_AT = "SELECT at FROM audit_entries WHERE tenant_id = %s AND seq = %s"


class AnchorReader:
    """Represents the anchors of one tenant; good for one transaction.

    A page of them takes the same few statements however many they are.
    """

    def __init__(
        self,
        session: Session,
        tenant_id: UUID,
        policy: Policy | None,
        master_keys: MasterKeys,
        trusted: Sequence[Certificate] = (),
    ) -> None:
        """`policy` says which witnesses count, `trusted` whose timestamps; by default none.

        Raises `AuditChainBroken` where the chain's salt is not the one that was sealed.
        """
        self._session = session
        self._tenant_id = tenant_id
        self._chain = chain.chain_name(session, master_keys, tenant_id).hex()
        last = publication.current(session)
        self._chooser = None if last is None else Chooser(session, last, policy, trusted)
        self._proofs: dict[bytes, dict[str, Any]] = {}

    def rows(self, before: int | None, limit: int) -> Sequence[AuditAnchor]:
        """Return the tenant's anchors, newest first, those of a `seq` below `before`.

        All that is needed to represent them is read with them. Raises `LogDamaged` for an anchor of
        which the log never had a leaf.
        """
        wanted = select(AuditAnchor).where(AuditAnchor.tenant_id == self._tenant_id)
        if before is not None:
            wanted = wanted.where(AuditAnchor.seq < before)
        newest_first = wanted.order_by(AuditAnchor.seq.desc()).limit(limit)
        found = self._session.scalars(newest_first).all()
        self._prepare([each.leaf_hash for each in found])
        return found

    def covered(self) -> Covered:
        """Return how far the chain is anchored, and who vouches for the newest head that is."""
        seq: int | None = None
        vouchers: tuple[Voucher, ...] = ()
        if self._chooser is not None:
            last = self._chooser.last
            log = (last.generation.number, last.checkpoint.size)
            row = cursor(self._session).execute(_PLACED, (self._tenant_id, *log)).fetchone()
            if row is not None:
                seq, vouchers = row[0], self._chooser.vouchers(row[1])
        beyond = (self._tenant_id, (seq or START.seq) + 1)
        next_entry = cursor(self._session).execute(_AT, beyond).fetchone()
        return Covered(seq, vouchers, None if next_entry is None else next_entry[0])

    def represent(self, anchor: AuditAnchor) -> dict[str, Any]:
        """Return an anchor of `rows` as docs/formats.md says; a pending one has no proof."""
        return {
            "seq": anchor.seq,
            "hash": anchor.hash.hex(),
            "at": rfc3339(anchor.at),
            "chain": self._chain,
            **self._proofs[anchor.leaf_hash],
        }

    def _prepare(self, leaf_hashes: Sequence[bytes]) -> None:
        self._proofs.update((each, _PENDING) for each in leaf_hashes)
        chooser = self._chooser
        if chooser is None or not leaf_hashes:
            return
        found = proofs.leaves(self._session, chooser.last, leaf_hashes)
        if len(found) < len(set(leaf_hashes)):
            raise LogDamaged("An anchor's leaf is missing in the log.")
        placed = {each: leaf for each, leaf in found.items() if leaf is not None}
        chooser.prepare(leaf.index for leaf in placed.values())
        best = [chooser.best(leaf.index) for leaf in placed.values()]
        wanted = [(leaf, each.published) for leaf, each in zip(placed.values(), best, strict=True)]
        shown = proofs.at_checkpoints(self._session, wanted)
        for leaf_hash, evidence, proof in zip(placed, best, shown, strict=True):
            stamp = evidence.timestamp
            self._proofs[leaf_hash] = {
                "log_proof": proof,
                "vkey": str(evidence.published.generation.verifier_key),
                "timestamp": None if stamp is None else b64encode(stamp.response).decode(),
                "tsa_chain": None if stamp is None else stamp.chain,
                "cosignatures": list(evidence.cosignatures),
            }


_PENDING: dict[str, Any] = {
    "log_proof": None,
    "vkey": None,
    "timestamp": None,
    "tsa_chain": None,
    "cosignatures": [],
}

# Canonical JSON: the names in their order, and every quotation mark inside a string escaped.
_LAST_CHANGE = """
SELECT seq, position('"anchoring_enabled":{"new":true,'::bytea IN body) > 0, at FROM audit_entries
 WHERE tenant_id = %s AND action = 'settings.update'
   AND position('"anchoring_enabled":{"new":'::bytea IN body) > 0
 ORDER BY seq DESC LIMIT 1
"""


@dataclass(frozen=True)
class AnchoringState:
    """Whether a tenant's chain is anchored; if not, since when, where its chain says so.

    `enabled` is of the tenant's row, `enabled_in_chain` of the last entry that changes it, number
    `changed_by`; without one they are true and 1.
    """

    enabled: bool
    disabled_since: datetime | None
    enabled_in_chain: bool
    changed_by: int


def state_of(session: Session, tenant_id: UUID) -> AnchoringState:
    """Return whether the chain is anchored.

    Switched off by no caller but in the database, there is no entry that says since when.
    """
    enabled = session.execute(
        select(Tenant.anchoring_enabled).where(Tenant.id == tenant_id)
    ).scalar_one()
    row = cursor(session).execute(_LAST_CHANGE, (tenant_id,)).fetchone()
    seq, in_chain, at = row or (START.seq + 1, True, None)
    return AnchoringState(enabled, None if enabled or in_chain else at, in_chain, seq)


_OTHERS = {
    Voucher.TIMESTAMPS: "stamped by a timestamp authority",
    Voucher.WITNESSES: "cosigned by a quorum of witnesses",
}
_MISSING = {
    Voucher.TIMESTAMPS: "No timestamp covers it.",
    Voucher.WITNESSES: "No quorum of witnesses covers it.",
}
_NONE_CONFIGURED = "Set TSA_URL or WITNESS_POLICY, or keep checkpoints yourself."


def others_asked(settings: Settings) -> frozenset[Voucher]:
    """Return who outside is others_asked to vouch, as this installation is set up."""
    wanted = {
        Voucher.TIMESTAMPS: settings.tsa_url is not None,
        Voucher.WITNESSES: bool(cosigning.asked(settings.witness_policy)),
    }
    return frozenset(each for each, is_asked in wanted.items() if is_asked)


def of_chain(standing: AnchoringState, covered: Covered, others: frozenset[Voucher]) -> str:
    """Say how far a chain is anchored, and who vouches for that; `others` are those asked."""
    sentences = []
    if not standing.enabled:
        off = standing.disabled_since
        when = f"since {rfc3339(off)}" if off else "and no entry of the chain says since when"
        sentences.append(f"Anchoring is switched off{' ' if off else ', '}{when}.")
    since = covered.unanchored_since
    unanchored = "" if since is None else f"unanchored since {rfc3339(since)}."
    if covered.through is None:
        return " ".join([*sentences, f"No entry is anchored: {unanchored}"])
    by = {each: words for each, words in _OTHERS.items() if each in covered.vouchers}
    sentences.append(f"Anchored up to entry {covered.through}, in {_log_with(by)}.")
    sentences += _missing(set(by), others)
    if unanchored:
        sentences.append(f"What came after is {unanchored}")
    return " ".join(sentences)


def of_log(reach: Reach | None, others: frozenset[Voucher]) -> str:
    """Say who vouches for the log, and for how many of its leaves."""
    if reach is None:
        return "Not anchored yet: the log has published nothing."
    sizes = {Voucher.TIMESTAMPS: reach.stamped, Voucher.WITNESSES: reach.witnessed}
    by = {
        each: f"{words} (the first {sizes[each]} leaves)"
        for each, words in _OTHERS.items()
        if sizes[each]
    }
    log = _log_with(by)
    return " ".join([f"{log[0].upper()}{log[1:]}.", *_missing(set(by), others)])


def trouble_text(found: AnchoringTrouble) -> str:
    """Say what fails to those whom it concerns; why is for the operator."""
    since = rfc3339(found.since)
    if found.alarm:
        return f"ALARM: this witness has cosigned another log of this name; since {since}"
    if found.part == TIMESTAMPS:
        return f"unstamped since {since}"
    if found.part == monitor.QUORUM:
        return f"without a quorum of witnesses since {since}"
    if found.part in monitor.PARTS:
        return f"unanchored since {since}"
    return f"not cosigned by this witness since {since}"


def _log_with(others: Mapping[Voucher, str]) -> str:
    if not others:
        return "the service's own log alone: no external evidence covers it"
    return f"the service's own log, {' and '.join(others.values())}"


def _missing(there: set[Voucher], others: frozenset[Voucher]) -> list[str]:
    if not there and not others:
        return [_NONE_CONFIGURED]
    return [words for each, words in _MISSING.items() if each in others - there]
