"""The actors by name: what each name in `app.queue.ACTORS` does."""

from collections.abc import Callable, Mapping

import dramatiq

from app.queue import ACTORS
from jobs.anchor_audit import anchor_audit
from jobs.broker import TIME_LIMIT_MS, BellBroker
from jobs.check_master_keys import check_master_keys
from jobs.deliver import deliver
from jobs.expire_bundles import expire_bundles
from jobs.free_stuck_jobs import free_stuck_jobs
from jobs.integrate import integrate
from jobs.prune_history import prune_history
from jobs.run_job import run_job
from jobs.send_digests import send_digests
from jobs.stamp_checkpoint import stamp_checkpoint
from jobs.sweep import sweep
from jobs.verify_audit import verify_audit

FUNCTIONS: Mapping[str, Callable[..., None]] = {
    "deliver": deliver,
    "run_job": run_job,
    "integrate": integrate,
    "sweep": sweep,
    "expire_bundles": expire_bundles,
    "send_digests": send_digests,
    "prune_history": prune_history,
    "anchor_audit": anchor_audit,
    "stamp_checkpoint": stamp_checkpoint,
    "verify_audit": verify_audit,
    "check_master_keys": check_master_keys,
    "free_stuck_jobs": free_stuck_jobs,
}

# Milliseconds, of those that may take longer than any other.
TIME_LIMITS_MS = {"prune_history": 3_600_000}


def declare(broker: BellBroker) -> None:
    """Declare every actor on the broker; the row is the retry, so Dramatiq retries nothing."""
    for name, function in FUNCTIONS.items():
        limit = TIME_LIMITS_MS.get(name, TIME_LIMIT_MS)
        actor = dramatiq.actor(
            actor_name=name, queue_name=ACTORS[name], broker=broker, time_limit=limit
        )
        actor(function)
