"""Verifies one chain against itself, the log, the head outside and a caller's head."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import structlog
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.audit import chain, view
from app.core.log import status
from app.core.log.head_store import HeadStore
from app.core.log.publication import Published
from app.core.verification import alerts, anchored_heads, published_log, stored_chain
from app.core.verification.anchored_heads import Found
from app.core.verification.published_log import NOT_VERIFIED, Outside, Stamps, Trust
from app.database import Database, database_now
from app.errors import (
    AuditChainBroken,
    KeptHeadContradicted,
    LogHalted,
    LogHeadLost,
    LogHeadUnavailable,
    LogRolledBack,
)
from app.ledger.hash_chain import START, Head
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

    def verify(self, tenant_id: UUID, asked: Asked) -> dict[str, Any]:
        """Return what was found, as it is answered, if all is well.

        Raises `AuditChainBroken` for the first bad entry and `LogHalted` where the log does not
        hold, after an alert.
        """
        try:
            began, report, contradiction, is_whole = self.behind_head(
                lambda outside: self._verify(tenant_id, asked, outside)
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
            unknown = alerts.unknown_chains(session, self.master_keys)
            # What was read whole is verified for all tenants.
            alerts.heal(session, NO_TENANT, began, chains=False, leaves=is_whole, stamps=asked.full)
        # A chain that no tenant has may be this one's, from before its name was changed.
        if is_whole and not unknown["unknown_chains"]:
            with self.database.transaction(tenant_id) as session:
                alerts.heal(session, tenant_id, began)
        if contradiction is not None:
            raise contradiction
        return {"verified_at": rfc3339(began), **report, **unknown}

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

    def check_chain(
        self, tenant_id: UUID, last: Published | None, in_log: AuditChainBroken | None
    ) -> int:
        """Recompute a chain and prove its anchors, for the daily run; return its entries.

        `last` is the checkpoint that the run walked, None where it could not; `in_log` is the break
        that it found. Raises `AuditChainBroken` for the first one, after an alert.
        """
        keys, found = self.master_keys, Found(broken=in_log)
        try:
            with self.database.transaction(tenant_id, snapshot=True) as session:
                name = chain.chain_name(session, keys, tenant_id)
                end = stored_chain.end(session, tenant_id)

                def with_log() -> None:
                    if last is not None:
                        anchored_heads.check(session, tenant_id, name, last, found)

                in_itself = partial(stored_chain.check, session, keys, tenant_id, end)
                _compare(found, in_itself, with_log)
                stored_chain.check_setting(session, tenant_id)
        except AuditChainBroken as error:
            alerts.report_break(self.database, tenant_id, error)
            raise
        return end.seq

    def _verify(
        self, tenant_id: UUID, asked: Asked, outside: Outside
    ) -> tuple[datetime, dict[str, Any], KeptHeadContradicted | None, bool]:
        """Return the moment, the report, what contradicts it, and if all of the log was read."""
        keys = self.master_keys
        with self.database.transaction(tenant_id, snapshot=True) as session:
            began = database_now(session)
            name = chain.chain_name(session, keys, tenant_id)
            logs = published_log.read_logs(session, keys, outside)
            last, end = logs.last, stored_chain.end(session, tenant_id)
            since = None
            if asked.since_anchor and last is not None:
                since = anchored_heads.newest_anchor(session, tenant_id, last)
            found, after = Found(), 0 if since is None else since.seq - 1

            def with_log() -> None:
                if last is not None:
                    anchored_heads.compare_newest(session, tenant_id, name, last, found)
                # The anchor at which it begins is proven too.
                anchored_heads.check(session, tenant_id, name, last, found, after)

            begin = since or START
            in_itself = partial(stored_chain.check, session, keys, tenant_id, end, begin)
            _compare(found, in_itself, with_log)
            stamped = NOT_VERIFIED
            if since is None:
                stamps, newest = Stamps(self.trust), None
                stamps.check(session, keys, logs.published, full=asked.full)
                if last is not None and found.index is not None:
                    newest = (last.generation.number, found.index)
                stamped = stamps.represent(newest)
            setting = stored_chain.check_setting(session, tenant_id)
            off = setting.disabled_since
            kept = "empty" if last is None or outside.head is None else "kept"
            report: dict[str, Any] = {
                "status": "intact" if since is None else "intact-since-anchor",
                "chain": name.hex(),
                "entries": end.seq,
                "head": view.head_json(end),
                "anchored_through": found.through,
                "unanchored_entries": end.seq - (found.through or 0),
                "anchors": {
                    "enabled": setting.enabled,
                    "disabled_since": None if off is None else rfc3339(off),
                    "checked": found.checked,
                    "pending": found.pending,
                    "leaf_index": found.index,
                    **stamped,
                },
                "log": logs.represent(),
                "head_store": kept if outside.kept else status.NO_HEAD,
            }
            if since is not None:
                report["since"] = {**view.head_json(since), "leaf_index": found.index}
                report["leaves_read_from"] = found.read_from
            contradiction = _contradiction(session, tenant_id, report, asked)
            is_whole = last is not None and since is None and found.read_from == 0
            return began, report, contradiction, is_whole


def _compare(found: Found, in_itself: Callable[[], None], with_log: Callable[[], None]) -> None:
    """Check a chain in itself and with the log; raise the first break that either finds.

    One that is broken in itself is reported as that, whatever the log is like.
    """
    broken: AuditChainBroken | None = None
    try:
        in_itself()
    except AuditChainBroken as error:
        broken = error
    try:
        with_log()
    except LogHalted:
        if broken is None:
            raise
    # Of two breaks at one entry, what the log says of it is the nearer.
    if broken is not None:
        found.keep(broken)
    if found.broken is not None:
        raise found.broken


def _contradiction(
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
