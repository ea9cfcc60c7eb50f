"""The actors by name: the function of each name in `app.queue.ACTORS`."""

from collections.abc import Callable, Mapping
from uuid import UUID

import dramatiq

from app.queue import ACTORS
from jobs.actors import judge, prune_history, sweep, ticks
from jobs.delivery.lane_run import LaneRun
from jobs.durable.run_job import work_on
from jobs.process.broker import TIME_LIMIT_MS, BellBroker
from jobs.process.runtime import runtime

# Each takes the process's runtime, then the message's arguments; ticks are named as their actors.
FUNCTIONS: Mapping[str, Callable[..., None]] = {
    "deliver": lambda here, *lane: LaneRun(here, *map(UUID, lane)).run(),
    "run_job": lambda here, *job: work_on(here, *map(UUID, job)),
    "judge": judge.run,
    "sweep": sweep.run,
    "prune_history": prune_history.run,
    **{name: getattr(ticks, name) for name in ACTORS if hasattr(ticks, name)},
}

# Time limits in milliseconds of the actors that may run long. A job's errand may read a whole log.
TIME_LIMITS_MS = {"prune_history": 3_600_000, "reseal": 3_600_000, "run_job": 3_600_000}


def declare(broker: BellBroker) -> None:
    """Declare every actor on the broker, without Dramatiq's retries: the row is the retry."""
    for name, function in FUNCTIONS.items():
        limit = TIME_LIMITS_MS.get(name, TIME_LIMIT_MS)
        actor = dramatiq.actor(
            actor_name=name, queue_name=ACTORS[name], broker=broker, time_limit=limit
        )
        actor(lambda *arguments, of=function: of(runtime(), *arguments))
