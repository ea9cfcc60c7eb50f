"""The job `verify_audit`: a tenant's chain when it takes long, and every chain once a day."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app.core import jobs
from app.core.jobs import Errand, Failed, Step
from app.core.verification import daily
from app.core.verification.verifier import Asked, Verifier
from app.errors import AuditChainBroken, LogHalted, LogHeadUnavailable
from app.ledger.hash_chain import Head
from app.lib import canonical_json
from app.models import NO_TENANT, Job

KIND = "verify_audit"

_Said = dict[str, Any] | AuditChainBroken | LogHalted


def asked(args: Mapping[str, Any]) -> Asked:
    """Read what is asked from a request's or a job's arguments."""
    kept = Head(args["seq"], args["hash"]) if "seq" in args else None
    return Asked(kept, since_anchor=args.get("since") == "anchor", full=args.get("full") == "1")


def enqueue(session: Session, tenant_id: UUID, what: Asked) -> Job:
    """Have a job verify what somebody would wait too long for; the same is asked once."""
    args: dict[str, Any] = {"full": "1"} if what.full else {}
    if what.kept is not None:
        args |= {"seq": what.kept.seq, "hash": what.kept.hash}
    if what.since_anchor:
        args["since"] = "anchor"
    key = canonical_json.dumps(args).decode()
    return jobs.enqueue(session, tenant_id, kind=KIND, args=args, dedupe_key=key)


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
    return Errand(lambda: _verify(verifier, tenant_id, what), _record)


def _verify(verifier: Verifier, tenant_id: UUID, what: Asked) -> _Said:
    try:
        return verifier.verify(tenant_id, what)
    except (AuditChainBroken, LogHalted) as error:
        return error


def _record(_session: Session, said: _Said) -> Step | Failed:
    if isinstance(said, dict):
        return Step(None, said)
    # What was found stays found; only a store that did not answer may do so next time.
    return Failed(f"{said.slug}: {said.detail}", for_good=not isinstance(said, LogHeadUnavailable))
