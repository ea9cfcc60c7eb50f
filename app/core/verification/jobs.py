"""The job `verify_audit`: one chain if it is long, all chains once a day."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from app.core.jobs import job_queue, job_rows
from app.core.jobs.steps import Errand, Failed, Step
from app.core.verification import alerts, daily
from app.core.verification.verifier import Asked, Verifier
from app.database import cursor
from app.errors import AuditChainBroken, Busy, LogHalted, LogHeadUnavailable
from app.ledger.hash_chain import Head
from app.models import NO_TENANT, Job

KIND = daily.KIND

MOST_ENTRIES = 300_000
"""A longer chain is verified by a job: some seconds on one of two cores with other work."""

_KEY = "chain"
_TO_READ = """
SELECT h.seq - coalesce((SELECT max(a.seq) FROM audit_anchors AS a
                          WHERE a.tenant_id = h.tenant_id AND %(since_anchor)s), 0)
  FROM audit_heads AS h WHERE h.tenant_id = %(tenant)s
"""


def asked(args: Mapping[str, Any]) -> Asked:
    """Read the options from the arguments of a request or a job."""
    kept = Head(args["seq"], args["hash"]) if "seq" in args else None
    return Asked(
        kept,
        args.get("chain"),
        since_anchor=args.get("since") == "anchor",
        full=args.get("full") == "1",
    )


def is_long(session: Session, tenant_id: UUID, options: Asked) -> bool:
    """Say whether a verification takes too long for a request."""
    values = {"tenant": tenant_id, "since_anchor": options.since_anchor}
    row = cursor(session).execute(_TO_READ, values).fetchone()
    return row is not None and row[0] > MOST_ENTRIES


def enqueue(session: Session, tenant_id: UUID, args: Mapping[str, Any]) -> Job:
    """Enqueue a verification, as a request asks for it; equal ones share a job.

    Raises `Busy` while another question about this chain is open.
    """
    wanted = dict(args)
    job = job_queue.enqueue(session, tenant_id, kind=KIND, args=wanted, dedupe_key=_KEY)
    if job_rows.args_of(job) != wanted:
        raise Busy("Another verification of this chain is not done yet; try again when it is.")
    return job


def enqueue_daily(session: Session) -> Job:
    """Have every chain verified, in a session that sees all tenants."""
    return job_queue.recur(session, kind=KIND, dedupe_key=daily.KEY, args={})


def step(verifier: Verifier, _session: Session, tenant_id: UUID, job: Job) -> Errand[Any]:
    """Verify a tenant's chain, or all of them; a report is the job's progress."""
    if tenant_id == NO_TENANT:
        return daily.step(verifier)
    options = asked(job_rows.args_of(job))

    def verify() -> Step | Failed:
        try:
            return Step(None, verifier.verify(tenant_id, options))
        except (AuditChainBroken, LogHalted) as error:
            # A second try would find the same; only a store that did not answer may do so then.
            text = f"{error.slug}: {alerts.readable(error.detail)}"
            return Failed(text, for_good=not isinstance(error, LogHeadUnavailable))

    return Errand(verify, lambda _, ended: ended)
