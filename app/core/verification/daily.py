"""The daily verification of all chains: the log is read once, then each chain.

The log names the chains. One that no tenant has was deleted with its tenant, or renamed by another
salt.
"""

import enum
import time
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core.jobs.steps import Errand, Failed, Step
from app.core.verification import alerts, daily_state, unknown_chains
from app.core.verification.checks import anchored_heads, published_log
from app.core.verification.checks.anchored_heads import Leaves
from app.core.verification.checks.full import LogReading
from app.core.verification.checks.published_log import Outside
from app.core.verification.checks.stamps import Stamps
from app.core.verification.time_budget import Deadline
from app.core.verification.verifier import Verifier
from app.database import cursor, database_now
from app.errors import AuditChainBroken, LogHalted, LogHeadUnavailable, Unavailable
from app.lib.crypto.sealing import MasterKeys
from app.models import NO_TENANT, Job, Tenant

_log = structlog.get_logger(__name__)

# A step commits its progress: a killed one is repeated.
_STEP_SECONDS = 10.0
_AT_ONCE = 500
_BEFORE_ALL = UUID(int=0)


def step(verifier: Verifier, session: Session, job: Job) -> Step | Failed | Errand[Any]:
    """Read the log first, then verify tenants in the order of their ids, some a step."""
    keys = verifier.master_keys
    state = daily_state.resumed(keys, job)
    if state is None:
        began = database_now(session)
        return Errand(
            lambda: _read_log(verifier),
            lambda then, outcome: _after_log(then, keys, job, began, outcome),
        )
    after, progress = state
    wanted = select(Tenant.id).where(Tenant.id > after).order_by(Tenant.id).limit(_AT_ONCE)
    tenants = list(session.scalars(wanted))
    return Errand(
        lambda: _verify_each(verifier, tenants),
        lambda then, verified: _after_tenants(then, keys, job, progress, tenants, verified),
    )


_Broken = dict[UUID, AuditChainBroken]
_FoundInLog = tuple[dict[str, Any], Leaves | None, _Broken]


def _read_log(verifier: Verifier) -> _FoundInLog | LogHalted:
    try:
        return verifier.behind_head(lambda outside: _verify_log(verifier, outside))
    except LogHeadUnavailable as error:
        return error
    except LogHalted as error:
        alerts.report_log(verifier.database, error)
        return error


def _verify_log(verifier: Verifier, outside: Outside) -> _FoundInLog:
    keys = verifier.master_keys
    with verifier.database.across_tenants(snapshot=True) as session:
        cursor(session).execute(anchored_heads.PLAN, prepare=False)
        last = published_log.newest(session, keys, outside)
        if last is None:
            return {"leaves": 0, "heads": 0}, None, {}
        stamps = Stamps(session, verifier.trust, last.generation.number, full=False)
        known = unknown_chains.acknowledged(session, keys)
        reading = LogReading(session, keys, outside, stamps, Deadline(None), known)
        heads, broken = reading.of_all(last)
    return {"leaves": last.checkpoint.size, "heads": heads.matched}, heads, broken


def _after_log(
    session: Session,
    master_keys: MasterKeys,
    job: Job,
    began: datetime,
    outcome: _FoundInLog | LogHalted,
) -> Step | Failed:
    """Report the log's verification, and go on with the chains, also if the log is halted."""
    if isinstance(outcome, LogHeadUnavailable):
        return Failed(outcome.detail)
    progress: dict[str, Any] = {"began": rfc3339(began), "tenants": 0, "entries": 0, "broken": 0}
    progress["failed"] = 0
    if isinstance(outcome, LogHalted):
        progress["log"] = outcome.slug
        return daily_state.step(master_keys, job, _BEFORE_ALL, progress)
    counts, heads, broken = outcome
    if heads is not None:
        _report_log(session, heads, broken)
    alerts.heal(session, NO_TENANT, began)
    unknown = () if heads is None else tuple(heads.unknown)
    progress |= {"log": "intact", **counts, "unknown_chains": len(unknown), "broken": len(broken)}
    progress |= unknown_chains.seal_found(master_keys, job, unknown, began)
    return daily_state.step(master_keys, job, _BEFORE_ALL, progress)


def _report_log(session: Session, heads: Leaves, broken: _Broken) -> None:
    for chain, (index, head) in heads.unknown.items():
        alerts.report_unknown(session, chain, head.seq, index)
    for tenant_id, error in broken.items():
        alerts.report_break_in(session, tenant_id, error)
    if heads.unexpected is not None:
        _log.critical("log_leaf_unexpected", leaf=heads.unexpected)


class _Bad(enum.Enum):
    BROKEN = "broken"
    FAILED = "failed"


_Verified = tuple[UUID, int | _Bad]


def _verify_each(verifier: Verifier, tenants: list[UUID]) -> list[_Verified]:
    """Verify chains for a step's time, one at least; return how many entries each has."""
    until = time.monotonic() + _STEP_SECONDS
    verified = []
    for tenant_id in tenants:
        verified.append((tenant_id, _entries_of(verifier, tenant_id)))
        if time.monotonic() > until:
            break
    return verified


def _entries_of(verifier: Verifier, tenant_id: UUID) -> int | _Bad:
    try:
        return verifier.check_chain(tenant_id)
    except AuditChainBroken:
        return _Bad.BROKEN
    except Unavailable:
        raise
    except Exception as error:  # noqa: BLE001  # one tenant's fault hides no other's break
        tenant, kind = ids.text("ten", tenant_id), type(error).__name__
        _log.critical("audit_chain_not_verified", tenant_id=tenant, error=kind)
        return _Bad.FAILED


def _after_tenants(
    session: Session,
    master_keys: MasterKeys,
    job: Job,
    progress: dict[str, Any],
    tenants: list[UUID],
    verified: list[_Verified],
) -> Step:
    began = datetime.fromisoformat(progress["began"])
    for tenant_id, entries in verified:
        progress["tenants"] += 1
        if isinstance(entries, _Bad):
            progress[entries.value] += 1
        else:
            progress["entries"] += entries
            # Neither the log nor the chain has a break since the run began; and a chain without a
            # tenant may be this one's, from before its name was changed.
            if progress["log"] == "intact" and not progress["unknown_chains"]:
                alerts.heal(session, tenant_id, began)
    if len(verified) == len(tenants) < _AT_ONCE:
        return daily_state.end(session, master_keys, progress)
    return daily_state.step(master_keys, job, verified[-1][0], progress)
