"""The job `verify_audit`: a tenant's chain when it takes long, and every chain once a day."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.clock import rfc3339
from app.core import jobs
from app.core.audit import view
from app.core.audit.verification import breaks, daily
from app.core.audit.verification.verifier import Asked, Verifier
from app.core.jobs import Errand, Failed, Step
from app.database import database_now
from app.errors import AuditChainBroken, Busy, KeptHeadContradicted, LogHalted, LogHeadUnavailable
from app.ledger.hash_chain import Head
from app.lib import canonical_json
from app.models import NO_TENANT, Job

KIND = "verify_audit"

# What a job that found a break shows as its `status`.
_BROKEN = {"broken": AuditChainBroken, "contradicted": KeptHeadContradicted}
_AT_ONCE = 2
_YOUNG = timedelta(minutes=1)

_Said = dict[str, Any] | AuditChainBroken | LogHalted


def asked(args: Mapping[str, Any]) -> Asked:
    """Read what is asked from a request's or a job's arguments."""
    kept = Head(args["seq"], args["hash"]) if "seq" in args else None
    return Asked(
        kept,
        args.get("chain"),
        since_anchor=args.get("since") == "anchor",
        full=args.get("full") == "1",
    )


def _args(what: Asked) -> dict[str, Any]:
    args: dict[str, Any] = {"full": "1"} if what.full else {}
    if what.kept is not None:
        args |= {"seq": what.kept.seq, "hash": what.kept.hash}
    if what.since_anchor:
        args["since"] = "anchor"
    if what.chain is not None:
        args["chain"] = what.chain
    return args


def enqueue(session: Session, tenant_id: UUID, what: Asked) -> Job:
    """Have a job verify what somebody would wait too long for; the same is asked once.

    Raises `Busy` beyond some different questions at once: whoever has a key may invent any number.
    """
    args = _args(what)
    key = canonical_json.dumps(args).decode()
    # Two who ask at once: the second waits here, and then counts the first one's job.
    jobs.take_turns(session, f"{tenant_id}:{KIND}")
    others = select(func.count()).where(
        Job.tenant_id == tenant_id,
        Job.kind == KIND,
        Job.finished_at.is_(None),
        Job.dedupe_key != key,
    )
    if session.execute(others).scalar_one() >= _AT_ONCE:
        raise Busy("Other verifications of this chain are not done yet; try again when they are.")
    return jobs.enqueue(session, tenant_id, kind=KIND, args=args, dedupe_key=key)


def same(session: Session, tenant_id: UUID, what: Asked) -> Job | None:
    """Return the job that was asked the same and is open, or found something a minute ago at most.

    What it found says `answered`.
    """
    key = canonical_json.dumps(_args(what)).decode()
    wanted = select(Job).where(Job.tenant_id == tenant_id, Job.kind == KIND, Job.dedupe_key == key)
    found = session.scalar(wanted.where(Job.finished_at.is_(None)))
    if found is not None:
        return found
    young = Job.finished_at > func.clock_timestamp() - _YOUNG
    last = session.scalar(wanted.where(young).order_by(Job.finished_at.desc()).limit(1))
    # The log is the operator's to put right: what it said then is asked anew.
    return last if last is not None and last.progress is not None else None


def answered(job: Job) -> dict[str, Any]:
    """Return what a finished job found, as it is answered. Raises `AuditChainBroken`."""
    found = dict(json.loads(job.progress or "{}"))
    if found["status"] not in _BROKEN:
        return found
    kind = _BROKEN[found["status"]]
    error = view.broken(found["seq"], found["reason"], found["expected"], found["found"])
    raise kind(str(error.detail), error.report | {"verified_at": found["verified_at"]})


def look(session: Session) -> Job:
    """Have every chain verified, in a session that sees all tenants."""
    return jobs.recur(session, kind=KIND, dedupe_key="all", args={})


def step(
    verifier: Verifier, session: Session, tenant_id: UUID, job: Job
) -> Step | Failed | Errand[Any]:
    """Verify a tenant's chain, or all of them, a part at a time."""
    if tenant_id == NO_TENANT:
        return daily.step(verifier, session, job)
    what = asked(jobs.args_of(job))
    return Errand(
        lambda: _verify(verifier, tenant_id, what), lambda then, said: _record(then, job, said)
    )


def _verify(verifier: Verifier, tenant_id: UUID, what: Asked) -> _Said:
    try:
        return verifier.verify(tenant_id, what)
    except (AuditChainBroken, LogHalted) as error:
        return error


def _record(session: Session, job: Job, said: _Said) -> Step | Failed:
    if isinstance(said, dict):
        return Step(None, said)
    if isinstance(said, AuditChainBroken):
        report = {
            name: value if isinstance(value, int) else breaks.readable(value)
            for name, value in said.report.items()
        }
        moment = rfc3339(database_now(session))
        status = "contradicted" if isinstance(said, KeptHeadContradicted) else "broken"
        jobs.renew(session, job, {**report, "status": status, "verified_at": moment})
    # What was found stays found; only a store that did not answer may do so next time.
    return Failed(
        f"{said.slug}: {breaks.readable(said.detail)}",
        for_good=not isinstance(said, LogHeadUnavailable),
    )
