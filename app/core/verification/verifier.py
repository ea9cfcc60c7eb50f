"""Verifies one chain against itself, the log, the head outside and a caller's head."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain_identity, view
from app.core.log.head.head_store import HeadStore
from app.core.verification import alerts, report, unknown_chains
from app.core.verification.checks import (
    anchored_heads,
    full,
    incremental,
    published_log,
    settings,
    stored_chain,
)
from app.core.verification.checks.full import LogReading, Seen
from app.core.verification.checks.published_log import Outside
from app.core.verification.checks.stamps import Stamps, Trust
from app.core.verification.time_budget import Deadline
from app.database import Database, cursor, database_now
from app.errors import (
    AuditChainBroken,
    KeptHeadContradicted,
    LogHalted,
    LogHeadLost,
    LogHeadUnavailable,
    LogRolledBack,
)
from app.ledger.hash_chain import Head
from app.lib.crypto.sealing import MasterKeys
from app.models import NO_TENANT

_log = structlog.get_logger(__name__)

_Seen = TypeVar("_Seen")


@dataclass(frozen=True)
class Asked:
    """Options of a verification: the caller's kept head, new entries only, or every timestamp.

    `chain` is the name that an earlier answer gave, in hex.
    """

    kept: Head | None = None
    chain: str | None = None
    since_anchor: bool = False
    full: bool = False


@dataclass(frozen=True)
class Verifier:
    """Verifies chains of one database, and keeps nothing between two verifications.

    `head` is the store outside, if any; `trust` says whose timestamps and cosignatures count.
    """

    database: Database
    master_keys: MasterKeys
    head: HeadStore | None
    trust: Trust

    def verify(self, tenant_id: UUID, asked: Asked, seconds: float | None = None) -> dict[str, Any]:
        """Return what was found, as it is answered, if all is well.

        Raises `AuditChainBroken` for the first bad entry and `LogHalted` where the log does not
        hold, after an alert; `TakesLonger` once it is clear that `seconds` will not do.
        """
        deadline = Deadline(seconds)
        try:
            began, report, contradiction, known = self.behind_head(
                lambda outside: self._verify(tenant_id, asked, outside, deadline)
            )
        except AuditChainBroken as error:
            alerts.report_break(self.database, tenant_id, error)
            raise
        except LogHeadUnavailable:
            raise
        except LogHalted as error:
            alerts.report_log(self.database, error)
            raise
        with self.database.transaction(NO_TENANT) as session:
            unknown = unknown_chains.standing(session, self.master_keys)
            # The whole log was read, so this is its verification for all tenants.
            if report["log"] is not None and not asked.since_anchor:
                alerts.heal_log(session, began, full=asked.full)
        # A chain that no tenant has may be this one's, from before its name was changed.
        if known and not asked.since_anchor and not unknown.count:
            with self.database.transaction(tenant_id) as session:
                alerts.heal(session, tenant_id, began)
        if contradiction is not None:
            raise contradiction
        return {"verified_at": rfc3339(began), **report, **unknown.represent()}

    def behind_head(self, verify: Callable[[Outside], _Seen]) -> _Seen:
        """Return what `verify` finds in a snapshot that it takes once the head outside was read.

        Where both disagree and the head is another by now, the first head, or a successor's, came
        in between: `verify` is called once more. Raises what it raises, and `LogHeadUnavailable`.
        """
        outside = Outside.read(self.head)
        try:
            return verify(outside)
        except (LogHeadLost, LogRolledBack):
            newer = Outside.read(self.head)
            if newer == outside:
                raise
        return verify(newer)

    def check_chain(self, tenant_id: UUID) -> int:
        """Recompute a chain by itself: the daily run compares all chains with the log at once.

        Returns the number of entries. Raises `AuditChainBroken`, after an alert.
        """
        try:
            with self.database.transaction(tenant_id, snapshot=True) as session:
                chain_identity.chain_name(session, self.master_keys, tenant_id)
                end = stored_chain.end(session, tenant_id)
                stored_chain.check(session, tenant_id, end, Deadline(None))
                settings.check(session, tenant_id)
        except AuditChainBroken as error:
            alerts.report_break(self.database, tenant_id, error)
            raise
        return end.seq

    def _verify(
        self, tenant_id: UUID, asked: Asked, outside: Outside, deadline: Deadline
    ) -> tuple[datetime, dict[str, Any], KeptHeadContradicted | None, int]:
        """Return the moment, the report, what contradicts it, and how many breaks are open."""
        with self.database.transaction(tenant_id, snapshot=True) as session:
            began = database_now(session)
            report = self._verified(session, tenant_id, asked, outside, deadline)
            contradiction = _held(session, tenant_id, report, asked)
            return began, report, contradiction, alerts.count_open(session)

    def _verified(
        self, session: Session, tenant_id: UUID, asked: Asked, outside: Outside, deadline: Deadline
    ) -> dict[str, Any]:
        deadline.check()
        cursor(session).execute(anchored_heads.PLAN, prepare=False)
        name = chain_identity.chain_name(session, self.master_keys, tenant_id)
        last = published_log.newest(session, self.master_keys, outside)
        end = stored_chain.end(session, tenant_id)
        number = 0 if last is None else last.generation.number
        seen = None
        if asked.since_anchor and last is not None:
            found = incremental.check(session, tenant_id, name, last, end, deadline)
            seen = found and Seen(last, None, found[1], start=found[0])
        if seen is None:
            stamps = Stamps(session, self.trust, number, full=asked.full)
            reading = LogReading(session, self.master_keys, outside, stamps, deadline)
            seen = Seen(last, stamps, *full.check(reading, tenant_id, name, last, end))
        settings.check(session, tenant_id)
        return report.report(session, tenant_id, name, end, seen, outside)


def _held(
    session: Session, tenant_id: UUID, report: dict[str, Any], asked: Asked
) -> KeptHeadContradicted | None:
    """Hold a good chain against what the caller kept; return what contradicts it.

    A contradiction is logged, but raises no alarm, sends no event and is not stored: any caller
    with a key may send any head, and the answer tells that caller.
    """
    try:
        if asked.chain is not None and asked.chain != report["chain"]:
            raise view.broken(1, "other_chain", asked.chain, report["chain"])
        if asked.kept is not None:
            stored_chain.hold(session, tenant_id, Head(**report["head"]), asked.kept)
    except AuditChainBroken as error:
        tenant = ids.text("ten", tenant_id)
        kept = asked.kept and view.head_json(asked.kept)
        _log.warning("supplied_head_contradicted", tenant_id=tenant, kept=kept, **error.report)
        return KeptHeadContradicted(str(error.detail), error.report)
    return None
