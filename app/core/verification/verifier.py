"""One tenant's chain held against everything: itself, the log, the head outside, a caller's head."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import audit_view
from app.core.anchoring import anchors
from app.core.log import status
from app.core.log.heads import HeadStore
from app.core.log.publication import Published
from app.core.verification import anchored, breaks, chain, published_log, recent
from app.core.verification.anchored import Found, Leaves
from app.core.verification.deadline import Deadline, TakesLonger
from app.core.verification.log_walk import bundle_reader
from app.core.verification.published_log import Outside, Succession
from app.core.verification.recent import Start
from app.core.verification.stamps import Stamps, Trust
from app.database import Database, cursor, database_now
from app.errors import AuditChainBroken, LogHalted, LogHeadUnavailable, LogRolledBack
from app.ledger import leaves
from app.ledger.hash_chain import Head
from app.lib.sealing import MasterKeys
from app.models import NO_TENANT, AuditHead, Tenant

# What a machine of two cores does in a second, others at work: whoever would wait in vain is told.
_ENTRIES_A_SECOND = 150_000
_LEAVES_A_SECOND = 400_000


@dataclass(frozen=True)
class Asked:
    """What a caller wants: a head of theirs held too, only what is new, or every timestamp."""

    kept: Head | None = None
    since_anchor: bool = False
    full: bool = False


@dataclass
class _Seen:
    """What was found in the log for one chain."""

    last: Published | None
    held: Found
    pending: int
    stamps: Stamps
    successions: list[Succession]
    start: Start | None = None


class Verifier:
    """Verifies chains of one database; holds nothing between two verifications."""

    def __init__(
        self,
        database: Database,
        master_keys: MasterKeys,
        head: HeadStore | None,
        trust: Trust,
    ) -> None:
        """`head` is the store outside, if any; `trust` says whose timestamps and witnesses count."""
        self.database = database
        self.master_keys = master_keys
        self.head = head
        self.trust = trust

    def verify(
        self, tenant_id: UUID, asked: Asked, seconds: float | None = None
    ) -> dict[str, Any]:
        """Return what was found, as it is answered, if all is well.

        Raises `AuditChainBroken` for the first bad entry and `LogHalted` where the log does not
        hold, both after saying so loudly; `TakesLonger` once it is clear that `seconds` will not do.
        """
        deadline = Deadline(seconds)
        try:
            outside = Outside.read(self.head)
            with self.database.transaction(tenant_id, snapshot=True) as session:
                began = database_now(session)
                report = self._verified(session, tenant_id, asked, outside, deadline)
                known = breaks.count_open(session)
        except AuditChainBroken as error:
            breaks.found(self.database, tenant_id, error)
            raise
        except LogHeadUnavailable:
            raise
        except LogHalted as error:
            breaks.halted(self.database, error)
            raise
        if known and not asked.since_anchor:
            self._heal(tenant_id, began)
        self._hold(tenant_id, report, asked.kept)
        return {**report, "unknown_chains": self._unknown_chains()}

    def check_chain(self, tenant_id: UUID) -> int:
        """Recompute a chain by itself, for who has held all chains against the log already.

        Returns the number of entries; raises `AuditChainBroken`, after saying so.
        """
        try:
            with self.database.transaction(tenant_id, snapshot=True) as session:
                end = chain.end(session, tenant_id)
                chain.check(session, tenant_id, end, Deadline(None))
        except AuditChainBroken as error:
            breaks.found(self.database, tenant_id, error)
            raise
        return end.seq

    def _verified(
        self, session: Session, tenant_id: UUID, asked: Asked, outside: Outside, deadline: Deadline
    ) -> dict[str, Any]:
        cursor(session).execute(anchored.PLAN, prepare=False)
        last = published_log.newest(session, self.master_keys, outside)
        end = chain.end(session, tenant_id)
        seen = None
        if asked.since_anchor and last is not None:
            seen = self._recent(session, tenant_id, last, end, deadline)
        if seen is None:
            _check_time(end, last, deadline)
            seen = self._whole(session, tenant_id, asked, last, end, outside, deadline)
        return _report(session, tenant_id, end, seen, outside)
