"""A worker in this process that delivers: Dramatiq's threads on our broker, rung by a real bell."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import dramatiq

from app.errors import Unavailable
from app.queue import ACTORS
from jobs.delivery.lane_run import LaneRun
from jobs.process.broker import BellBroker
from jobs.process.runtime import Runtime


def take_turn(runtime: Runtime, tenant_id: UUID, webhook_id: UUID) -> None:
    """Take a turn at a lane, and another if its lock was not to be had: here nothing sweeps."""
    while True:
        try:
            return LaneRun(runtime, tenant_id, webhook_id).run()
        except Unavailable:
            continue


@contextmanager
def delivering(runtime: Runtime, redis_url: str, threads: int) -> Iterator[None]:
    """Have turns at lanes taken by `threads` threads as they are rung; nothing sweeps."""

    def deliver(tenant_id: str, webhook_id: str) -> None:
        take_turn(runtime, UUID(tenant_id), UUID(webhook_id))

    broker = BellBroker(redis_url)
    actor = dramatiq.actor(actor_name="deliver", queue_name=ACTORS["deliver"], broker=broker)
    actor(deliver)
    broker.emit_after("process_boot")
    worker = dramatiq.Worker(broker, worker_threads=threads, worker_timeout=100)
    worker.start()
    try:
        yield
    finally:
        worker.stop(timeout=20_000)
        broker.close()
