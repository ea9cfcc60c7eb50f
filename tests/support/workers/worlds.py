"""An outbox with the worker's runtime that sends from it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID, uuid4

import dramatiq

from app.errors import Unavailable
from app.queue import ACTORS
from app.settings import Settings
from jobs.delivery.lane_run import LaneRun
from jobs.process.broker import BellBroker
from jobs.process.bulkhead import Permit
from jobs.process.runtime import Runtime
from tests.support.workers.outbox import Outbox


class World(Outbox):
    """One tenant, a worker's runtime, and what a test does with them."""

    def __init__(self, runtime: Runtime, tenant_id: UUID) -> None:
        super().__init__(runtime.database, runtime.settings, tenant_id)
        self.runtime = runtime

    def turn(self, webhook: UUID) -> None:
        """Let a worker send what is due of a webhook."""
        LaneRun(self.runtime, self.tenant_id, webhook).run()

    def has_answered(
        self, webhook: UUID, *, latency_ms: float = 5.0, concurrency: int = 64
    ) -> None:
        """Have a lane know how soon its receiver answers, and how many POSTs it takes at once."""
        self.run(
            "UPDATE lanes SET latency_ms = :latency, concurrency = :most WHERE webhook_id = :id",
            latency=latency_ms,
            most=concurrency,
            id=webhook,
        )

    def fill_bulkhead(self) -> list[Permit]:
        """Have turns of other tenants take all permits."""
        permits = []
        for slow in (True, False):
            while permit := self.runtime.bulkhead.acquire(uuid4(), uuid4(), slow=slow):
                permits.append(permit)
        return permits


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


@contextmanager
def opened_runtime(settings: Settings) -> Iterator[Runtime]:
    """Open what a worker process holds, without Redis."""
    opened = Runtime.open(replace(settings, redis_url=None), threads=4)
    try:
        yield opened
    finally:
        opened.close()
