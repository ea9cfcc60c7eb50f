"""A worker as the service's is built, with actors that leave in Redis what they saw."""

import os
import time

import dramatiq

from app.queue import connect
from jobs.broker import BellBroker
from jobs.shutdown import shutting_down

_client = connect(os.environ["REDIS_URL"], 5.0)
_SLOW_SECONDS = 3.0


dramatiq.set_broker(BellBroker(os.environ["REDIS_URL"]))


@dramatiq.actor(queue_name="deliver")
def deliver(_tenant: str, webhook: str) -> None:
    """Note at once when it came."""
    _client.rpush("seen", f"{webhook} {time.time()}")


@dramatiq.actor(queue_name="jobs")
def run_job(job: str) -> None:
    """Take three seconds, whatever happens, and note what was seen of a stop meanwhile."""
    _client.rpush("begun", job)
    ends_at = time.monotonic() + _SLOW_SECONDS
    told = False
    while time.monotonic() < ends_at:
        told = told or shutting_down()
        time.sleep(0.01)
    _client.rpush("finished", f"{job} {'told' if told else 'untold'}")


@dramatiq.actor(queue_name="tick")
def sweep() -> None:
    """Count."""
    _client.incr("sweeps")
