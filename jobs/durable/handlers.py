"""Handlers of durable jobs: the step function of each kind."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy.orm import Session

from app import metrics
from app.core.anchoring import cosigning, heads, timestamping
from app.core.anchoring.cosigning import Cosigner
from app.core.anchoring.timestamping import Authority, Stamper
from app.core.delivery.lanes.lanes import Lane
from app.core.digests import schedule
from app.core.digests.sending import Sender
from app.core.jobs.steps import Errand, Failed, Step
from app.core.packs import building
from app.core.packs.building import Builder
from app.core.records import expiry
from app.core.replay import bulk_replay, send_now
from app.core.rules import scanning
from app.core.rules.scanning import Scanner
from app.core.verification import jobs as verification
from app.core.webhooks import receiver_check
from app.core.webhooks.receiver_check import Checker
from app.lib.outbound.client import Answer
from app.models import Job
from jobs.process.runtime import Runtime
from jobs.process.shutdown import shutting_down

Work: TypeAlias = Callable[[Session, UUID, Job], Step | Failed | Errand[Any]]


def _digest(here: Runtime) -> Work:
    return Sender(
        here.database,
        here.settings,
        here.mailer,
        stopping=shutting_down,
        count=lambda outcome: here.tally.add(metrics.DIGESTS, outcome),
    ).step


def _send(
    here: Runtime, lane: Lane, url: str, body: bytes, headers: dict[str, str]
) -> Answer | None:
    """Send one request to a lane's receiver, under a permit of a slow lane; None without one."""
    permit = here.bulkhead.acquire(lane.tenant_id, lane.webhook_id, slow=True)
    if permit is None:
        return None
    try:
        return here.outbound.send(url, body, headers)
    finally:
        here.bulkhead.release(permit)


# Each binds the step function to the services of the process that it needs.
KINDS: Mapping[str, Callable[[Runtime], Work]] = {
    bulk_replay.KIND: lambda _: bulk_replay.step,
    send_now.KIND: lambda _: send_now.step,
    receiver_check.KIND: lambda here: Checker(partial(_send, here), here.settings.master_keys).step,
    expiry.KIND: lambda _: expiry.step,
    schedule.KIND: _digest,
    heads.KIND: lambda here: partial(heads.step, here.settings.master_keys),
    building.KIND: lambda here: Builder(here.database, here.settings).step,
    timestamping.KIND: lambda here: Stamper(here.authorities, Authority.of(here.settings)).step,
    verification.KIND: lambda here: partial(verification.step, here.verifier),
    scanning.TEST: lambda here: Scanner(here.evaluators, here.settings.master_keys).test,
    scanning.BACKFILL: lambda here: Scanner(here.evaluators, here.settings.master_keys).backfill,
    cosigning.KIND: lambda here: Cosigner(here.authorities, here.settings.witness_policy).step,
}
