"""Dramatiq's own Worker on our broker, with actors of a test's own."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Protocol
from uuid import uuid4

import dramatiq
from dramatiq import Actor, Worker

from app.queue import ACTORS
from jobs.process.broker import BellBroker

TENANT = str(uuid4())


class HasUrl(Protocol):
    """What has a Redis's address."""

    url: str


@dataclass
class Seen:
    """What the actors were called with, in order."""

    calls: list[tuple[str, ...]] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def note(self, *arguments: str) -> None:
        """Note one call."""
        with self.lock:
            self.calls.append(arguments)


def declare(
    broker: BellBroker, name: str, function: Callable[..., None], queue_name: str | None = None
) -> Actor[..., None]:
    """Declare an actor, on its own queue unless another is named."""
    queue_name = queue_name or ACTORS[name]
    return dramatiq.actor(actor_name=name, queue_name=queue_name, broker=broker)(function)


@contextmanager
def working(
    valkey: HasUrl,
    *,
    threads: int = 4,
    deliver: Callable[..., None] | None = None,
    run_job: Callable[..., None] | None = None,
    sweep: Callable[..., None] | None = None,
) -> Iterator[Worker]:
    """Run a worker with these actors."""
    broker = BellBroker(valkey.url)
    for name, function in [("deliver", deliver), ("run_job", run_job), ("sweep", sweep)]:
        if function is not None:
            declare(broker, name, function)
    broker.emit_after("process_boot")
    worker = Worker(broker, worker_threads=threads, worker_timeout=100)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(timeout=5_000)
        broker.close()


def message(**fields: object) -> bytes:
    whole = {
        "queue_name": "jobs",
        "actor_name": "run_job",
        "args": [TENANT, "x"],
        "kwargs": {},
        "options": {},
        "message_id": str(uuid4()),
        "message_timestamp": 0,
    }
    return json.dumps(whole | fields).encode()
