"""A worker as the service's is built, with actors that leave in Redis what they saw."""

import os
import time

import dramatiq

from app.queue import connect
from jobs.process.broker import BellBroker
from jobs.process.middleware import shutting_down

_client = connect(os.environ["REDIS_URL"], 5.0)
# A guard: it is told long before.
_MOST_SECONDS = 300.0
_AFTER_SECONDS = 0.3


dramatiq.set_broker(BellBroker(os.environ["REDIS_URL"]))


@dramatiq.actor(queue_name="deliver")
def deliver(_tenant: str, webhook: str) -> None:
    """Note at once when it came."""
    _client.rpush("seen", f"{webhook} {time.time()}")


@dramatiq.actor(queue_name="jobs")
def run_job(job: str) -> None:
    """Go on until told of a stop and a moment longer, and note whether it was told."""
    _client.rpush("begun", job)
    ends_at = time.monotonic() + _MOST_SECONDS
    while not (told := shutting_down()) and time.monotonic() < ends_at:
        time.sleep(0.01)
    time.sleep(_AFTER_SECONDS)
    _client.rpush("finished", f"{job} {'told' if told else 'untold'}")


@dramatiq.actor(queue_name="tick")
def sweep() -> None:
    """Count."""
    _client.incr("sweeps")
