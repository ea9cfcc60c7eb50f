"""The actors by name: the function of each name in `app.queue.ACTORS`."""

from collections.abc import Callable, Mapping

import dramatiq

from app.queue import ACTORS
from jobs.actors import (
    anchor_audit,
    free_stuck_jobs,
    index_findings,
    send_digests,
    stamp_checkpoint,
)
from jobs.actors.check_master_keys import check_master_keys
from jobs.actors.deliver import deliver
from jobs.actors.expire_bundles import expire_bundles
from jobs.actors.integrate import integrate
from jobs.actors.prune_history import prune_history
from jobs.actors.sweep import sweep
from jobs.actors.verify_audit import verify_audit
from jobs.durable.run_job import run_job
from jobs.process.broker import TIME_LIMIT_MS, BellBroker
from jobs.process.runtime import runtime

FUNCTIONS: Mapping[str, Callable[..., None]] = {
    "deliver": deliver,
    "run_job": run_job,
    "integrate": integrate,
    "sweep": sweep,
    "expire_bundles": expire_bundles,
    "send_digests": lambda: send_digests.run(runtime()),
    "prune_history": prune_history,
    "anchor_audit": lambda: anchor_audit.run(runtime()),
    "stamp_checkpoint": lambda: stamp_checkpoint.run(runtime()),
    "verify_audit": verify_audit,
    "check_master_keys": check_master_keys,
    "free_stuck_jobs": lambda: free_stuck_jobs.run(runtime()),
    "index_findings": lambda: index_findings.run(runtime()),
}

# Time limits in milliseconds of the actors that may run long. A job's errand may read a whole log.
TIME_LIMITS_MS = {"prune_history": 3_600_000, "run_job": 3_600_000}


def declare(broker: BellBroker) -> None:
    """Declare every actor on the broker, without Dramatiq's retries: the row is the retry."""
    for name, function in FUNCTIONS.items():
        limit = TIME_LIMITS_MS.get(name, TIME_LIMIT_MS)
        actor = dramatiq.actor(
            actor_name=name, queue_name=ACTORS[name], broker=broker, time_limit=limit
        )
        actor(function)
