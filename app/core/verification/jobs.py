"""The job `verify_audit`: one chain if it takes long, all chains once a day."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core.audit import view
from app.core.jobs import job_queue, job_rows, leases
from app.core.jobs.steps import Errand, Failed, Step
from app.core.verification import alerts, daily
from app.core.verification.result_cache import identity, seal, unseal
from app.core.verification.verifier import Asked, Verifier
from app.database import database_now
from app.errors import (
    AuditChainBroken,
    Busy,
    KeptHeadContradicted,
    LogDamaged,
    LogHalted,
    LogHeadUnavailable,
)
from app.ledger.hash_chain import Head
from app.lib import canonical_json
from app.lib.crypto.sealing import MasterKeys
from app.models import NO_TENANT, Job

KIND = "verify_audit"

# The `status` of a job's report that stands for an error.
_BROKEN = {"broken": AuditChainBroken, "contradicted": KeptHeadContradicted}
_AT_ONCE = 2
_YOUNG = timedelta(minutes=1)

_Outcome = dict[str, Any] | AuditChainBroken | LogHalted


def asked(args: Mapping[str, Any]) -> Asked:
    """Read the options from the arguments of a request or a job."""
    kept = Head(args["seq"], args["hash"]) if "seq" in args else None
    return Asked(
        kept,
        args.get("chain"),
        since_anchor=args.get("since") == "anchor",
        full=args.get("full") == "1",
    )


def _args(options: Asked) -> dict[str, Any]:
    args: dict[str, Any] = {"full": "1"} if options.full else {}
    if options.kept is not None:
        args |= {"seq": options.kept.seq, "hash": options.kept.hash}
    if options.since_anchor:
        args["since"] = "anchor"
    if options.chain is not None:
        args["chain"] = options.chain
    return args


def _key(options: Asked) -> str:
    return canonical_json.dumps(_args(options)).decode()


def enqueue(session: Session, tenant_id: UUID, options: Asked) -> Job:
    """Enqueue a verification that takes too long for a request; equal ones share a job.

    Raises `Busy` beyond some different questions at once: a caller could invent any number.
    """
    # Of two requests at once the second waits here, and then counts the first one's job.
    job_rows.take_turns(session, f"{tenant_id}:{KIND}")
    key = _key(options)
    others = select(func.count()).where(
        Job.tenant_id == tenant_id,
        Job.kind == KIND,
        Job.finished_at.is_(None),
        Job.dedupe_key != key,
    )
    if session.execute(others).scalar_one() >= _AT_ONCE:
        raise Busy("Other verifications of this chain are not done yet; try again when they are.")
    return job_queue.enqueue(session, tenant_id, kind=KIND, args=_args(options), dedupe_key=key)


def answered(
    session: Session, master_keys: MasterKeys, tenant_id: UUID, options: Asked
) -> dict[str, Any] | None:
    """Return the report of a job with the same question, sealed a minute ago at most.

    None without one. Raises `AuditChainBroken` or `LogDamaged` where the job found that.
    """
    now = database_now(session)
    row = session.execute(
        select(Job.id, Job.progress)
        .where(
            Job.tenant_id == tenant_id,
            Job.kind == KIND,
            Job.dedupe_key == _key(options),
            Job.finished_at.between(now - _YOUNG, now),
        )
        .order_by(Job.finished_at.desc())
        .limit(1)
    ).first()
    sealed = row and unseal(master_keys, identity(tenant_id, row.id, _key(options)), row.progress)
    return _answer(sealed.found) if sealed and sealed.is_young(now, _YOUNG) else None


def _answer(found: dict[str, Any]) -> dict[str, Any]:
    if found["status"] == LogDamaged.slug:
        raise LogDamaged(found["detail"])
    if found["status"] not in _BROKEN:
        return found
    kind = _BROKEN[found["status"]]
    error = view.broken(found["seq"], found["reason"], found["expected"], found["found"])
    raise kind(str(error.detail), error.report | {"verified_at": found["verified_at"]})


def enqueue_daily(session: Session) -> Job:
    """Have every chain verified, in a session that sees all tenants."""
    return job_queue.recur(session, kind=KIND, dedupe_key="all", args={})


def step(
    verifier: Verifier, session: Session, tenant_id: UUID, job: Job
) -> Step | Failed | Errand[Any]:
    """Verify a tenant's chain, or all of them, a part at a time."""
    if tenant_id == NO_TENANT:
        return daily.step(verifier, session, job)
    options = asked(job_rows.args_of(job))
    question = identity(tenant_id, job.id, _key(options))
    return Errand(
        lambda: _verify(verifier, tenant_id, options),
        lambda then, outcome: _record(then, verifier.master_keys, job, question, outcome),
    )


def _verify(verifier: Verifier, tenant_id: UUID, options: Asked) -> _Outcome:
    try:
        return verifier.verify(tenant_id, options)
    except (AuditChainBroken, LogHalted) as error:
        return error


def _record(
    session: Session, master_keys: MasterKeys, job: Job, question: str, outcome: _Outcome
) -> Step | Failed:
    now = database_now(session)
    if isinstance(outcome, dict):
        return Step(None, seal(master_keys, question, outcome, now))
    # Other reasons for a halt of the log are answered at once, before a job is begun.
    if isinstance(outcome, AuditChainBroken | LogDamaged):
        leases.renew(session, job, seal(master_keys, question, _found(outcome, now), now))
    # A second try would find the same; only a store that did not answer may do so next time.
    return Failed(
        f"{outcome.slug}: {alerts.readable(outcome.detail)}",
        for_good=not isinstance(outcome, LogHeadUnavailable),
    )


def _found(error: AuditChainBroken | LogDamaged, now: datetime) -> dict[str, Any]:
    if isinstance(error, LogDamaged):
        return {"status": LogDamaged.slug, "detail": error.detail}
    status = "contradicted" if isinstance(error, KeptHeadContradicted) else "broken"
    return {**error.report, "status": status, "verified_at": rfc3339(now)}
