"""The worker's Dramatiq broker: its middleware and its queues' priorities.

Redis carries wake-ups only: no delay queue, no retries, no results. Later work is a row with a
time, which the sweep rings. Ticks go before jobs and jobs before deliveries. Priority preempts no
running message, so the bulkhead (`bulkhead.py`) keeps threads free of deliveries.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from dramatiq import Actor, Message, Middleware
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AgeLimit, TimeLimit

from app.lib.metric_registry import Tally
from app.queue import connect
from jobs.process.consumer import BellConsumer
from jobs.process.middleware import MessageLog, SignOfLife
from jobs.process.shutdown import GracefulStop
from jobs.process.wakeup_listener import WakeListener

# Smaller numbers go first.
PRIORITIES: Final = {"tick": 0, "jobs": 10, "deliver": 20}

# A frozen Redis blocks a thread for this long, once.
_TIMEOUT_SECONDS = 2.0
# A turn at a lane takes seconds, and each socket has its own timeout.
TIME_LIMIT_MS = 300_000
# Each fetch also takes back the messages of dead workers.
_MAINTENANCE_CHANCE = 1_000_000
_DEAD_AFTER_MS = 60_000


class BellBroker(RedisBroker):
    """Dramatiq's Redis broker, woken by the bell instead of polling."""

    def __init__(
        self, redis_url: str, middleware: Sequence[Middleware] = (), tally: Tally | None = None
    ) -> None:
        """Create the broker without connecting.

        `middleware` is added to that of every worker; `tally` counts messages.
        """
        super().__init__(  # type: ignore[no-untyped-call]
            client=connect(redis_url, _TIMEOUT_SECONDS),
            middleware=[
                GracefulStop(),
                MessageLog(tally or Tally()),
                AgeLimit(),
                TimeLimit(time_limit=TIME_LIMIT_MS, interval=1_000),
                SignOfLife(connect(redis_url, _TIMEOUT_SECONDS)),
                *middleware,
            ],
            maintenance_chance=_MAINTENANCE_CHANCE,
            heartbeat_timeout=_DEAD_AFTER_MS,
        )
        self.listener = WakeListener(connect(redis_url, _TIMEOUT_SECONDS))

    @property
    def consumer_class(self) -> Callable[..., BellConsumer]:
        """Return the factory of queue consumers, which share the listener."""
        return partial(BellConsumer, self.listener)

    def declare_actor(self, actor: "Actor[..., Any]") -> None:
        """Declare an actor with its queue's priority."""
        actor.priority = PRIORITIES[actor.queue_name]
        super().declare_actor(actor)

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue, without the delay queue that Dramatiq would add."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: "Message[Any]", *, delay: int | None = None) -> "Message[Any]":
        """Raise `TypeError`: a message sent from here would bypass the bell."""
        raise TypeError(f"ring {message.actor_name!r} through app.queue.Bell, not by sending it")

    def close(self) -> None:
        """Stop listening and close the connections."""
        self.listener.stop()
        self.client.close()
