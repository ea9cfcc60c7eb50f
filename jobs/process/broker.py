"""The worker's Dramatiq broker, woken by pub/sub instead of polling.

Redis carries wake-ups only: no delay queue, no retries, no dead letters, no results. Later work is
a row with a time, which the sweep rings. Ticks go before jobs and jobs before deliveries. Priority
preempts no running message, so the bulkhead (`bulkhead.py`) keeps threads free of deliveries.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, Final

import redis
import structlog
from dramatiq import Actor, BrokerConnectionError, Message, MessageProxy, Middleware
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.errors import DecodeError
from dramatiq.middleware import AgeLimit, TimeLimit
from redis.client import PubSub

from app.lib.metric_registry import Tally
from app.lib.stores import reason
from app.queue import WAKE_CHANNEL, connect
from jobs.process.middleware import GracefulStop, MessageLog

_log = structlog.get_logger(__name__)

# Smaller numbers go first.
PRIORITIES: Final = {"tick": 0, "jobs": 10, "deliver": 20}

# A frozen Redis blocks a thread for this long, once.
_TIMEOUT_SECONDS = 2.0
# A turn at a lane takes seconds, and each socket has its own timeout.
TIME_LIMIT_MS = 300_000
# Of a million fetches, so many take back the messages of dead workers too: rows need none of them,
# since the sweep rings what is due.
_MAINTENANCE_CHANCE = 20_000
_DEAD_AFTER_MS = 60_000

# The subscription: each read, and the silence after which it is asked, and given up.
_READ_SECONDS, _PING_AFTER_SECONDS, _DEAD_AFTER_SECONDS = 1.0, 5.0, 15.0
_FIRST_BACKOFF_SECONDS, _LONGEST_BACKOFF_SECONDS = 0.1, 2.0
# Dramatiq's threads check their stop flag at this interval.
_LONGEST_WAIT_SECONDS = 0.5
# Polls: beside a subscription (a process that is silent for 60 s loses its messages), and without.
_UNBIDDEN_SECONDS, _DEAF_SECONDS = 20.0, 1.0
_OPTIONS = {"redis_message_id", "max_age"}


class WakeListener:
    """One subscription a process, which sets a queue's event when the bell rings for it.

    Dramatiq's polling notices a message after 0.4 s or costs a hundred commands a second. Lost
    wake-ups do no harm: after each (re)connection all queues are woken, and without one
    (not `heard`) consumers poll.
    """

    def __init__(self, client: redis.Redis) -> None:
        """Use `client`; the first call of `event` starts the thread."""
        self._client = client
        self._events: defaultdict[str, Event] = defaultdict(Event)
        self._lock = Lock()
        self._thread: Thread | None = None
        self._stopping = Event()
        self.heard = False

    def event(self, queue_name: str) -> Event:
        """Return the event that is set whenever the queue may have a new message."""
        with self._lock:
            if self._thread is None:
                self._thread = Thread(target=self._run, name="wake-listener", daemon=True)
                self._thread.start()
            return self._events[queue_name]

    def stop(self) -> None:
        """Stop listening; the thread ends within a second."""
        self._stopping.set()

    def _run(self) -> None:
        backoff = _FIRST_BACKOFF_SECONDS
        while not self._stopping.is_set():
            try:
                with PubSub(self._client.connection_pool) as subscription:
                    subscription.subscribe(WAKE_CHANNEL)
                    self._listen(subscription)
            except redis.RedisError as error:
                if self.heard:
                    backoff = _FIRST_BACKOFF_SECONDS
                    kind = type(error).__name__
                    _log.warning("wakeup_subscription_lost", error=kind, reason=reason(error))
            # From now on consumers poll.
            self.heard = False
            self._wake(self._events)
            self._stopping.wait(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)

    def _listen(self, subscription: PubSub) -> None:
        """Set events until told to stop; raises `redis.TimeoutError` on a silent connection."""
        last_word = time.monotonic()
        while not self._stopping.is_set():
            message = subscription.get_message(timeout=_READ_SECONDS)
            silence = time.monotonic() - last_word
            if message is None and silence > _DEAD_AFTER_SECONDS:
                raise redis.TimeoutError("the subscription has gone silent")
            if message is None:
                if silence > _PING_AFTER_SECONDS:
                    subscription.ping()
                continue
            last_word = time.monotonic()
            if message["type"] == "subscribe":
                self.heard = True
                self._wake(self._events)
            elif message["type"] == "message":
                self._wake([message["data"].decode("utf-8", "replace")])

    def _wake(self, queue_names: Iterable[str]) -> None:
        with self._lock:
            for event in [self._events[name] for name in queue_names if name in self._events]:
                event.set()


class BellConsumer(_RedisConsumer):
    """The messages of one queue for one process; survives a lost or frozen Redis.

    A failed message is not kept as a dead letter: its row is due again.
    """

    def __init__(
        self,
        listener: WakeListener,
        broker: RedisBroker,
        queue_name: str,
        prefetch: int,
        timeout: int,
    ) -> None:
        super().__init__(broker, queue_name, prefetch, timeout)  # type: ignore[no-untyped-call]
        self._listener = listener
        self._wake = listener.event(queue_name)
        # Single messages would cost a round trip each.
        self._batch = max(1, prefetch // 4)
        self._fetch_at = 0.0
        # More messages may wait than there was room for.
        self._full = False
        self._away = False

    def __next__(self) -> MessageProxy | None:
        """Return a message, or None after half a second without one."""
        if not self.message_cache:
            self._refill()
        while self.message_cache:
            message = _read(self.message_cache.pop(0), self.queue_name)
            if message is not None:
                self.queued_message_ids.add(message.message_id)
                return MessageProxy(message)
            # Nobody acknowledges it: the next fetch must not wait for a poll.
            if self._full:
                self._wake.set()
        return None

    def ack(self, message: MessageProxy) -> None:
        """Delete a message. Without Redis it stays with this process, and does no harm."""
        try:
            super().ack(message)  # type: ignore[no-untyped-call]
        except (redis.RedisError, BrokerConnectionError) as error:
            self._lost(error)
        if self._full and self.prefetch - self.outstanding_message_count >= self._batch:
            self._wake.set()

    nack = ack

    def requeue(self, messages: Iterable[MessageProxy | Message[None]]) -> None:
        """Requeue messages for other workers, and wake them.

        Raises `BrokerConnectionError` when Redis is away: the messages come back a minute later.
        """
        try:
            super().requeue(messages)  # type: ignore[no-untyped-call]
            self.broker.client.publish(WAKE_CHANNEL, self.queue_name)
        except redis.RedisError as error:
            kind = type(error).__name__
            raise BrokerConnectionError(kind) from None  # type: ignore[no-untyped-call]

    def _refill(self) -> None:
        """Fetch once the bell rang, prefetch room became free, or a poll is due."""
        until_unbidden = max(self._fetch_at - time.monotonic(), 0.0)
        woken = self._wake.wait(min(until_unbidden, _LONGEST_WAIT_SECONDS))
        if not woken and time.monotonic() < self._fetch_at:
            return
        # Clear before reading: a ring and a free place set the event after the fact they report.
        self._wake.clear()
        self._full = True
        room = self.prefetch - self.outstanding_message_count
        pause = _UNBIDDEN_SECONDS if self._listener.heard else _DEAF_SECONDS
        self._fetch_at = time.monotonic() + pause
        if room < self._batch:
            return
        try:
            self.message_cache = list(self.broker.do_fetch(self.queue_name, room))
        except redis.RedisError as error:
            self._lost(error)
            self._fetch_at = time.monotonic() + _DEAF_SECONDS
            return
        if self._away:
            self._away = False
            _log.info("queue_recovered", queue=self.queue_name)
        self._full = len(self.message_cache) == room

    def _lost(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            why = {"error": type(error).__name__, "reason": reason(error)}
            _log.warning("queue_unavailable", queue=self.queue_name, **why)


def _read(data: bytes | None, queue_name: str) -> Message[None] | None:
    """Decode a message; None if it was dropped meanwhile or is not from this service.

    A malformed one would end Dramatiq's threads.
    """
    if data is None:
        return None
    try:
        message: Message[None] = Message.decode(data)
        options: object = message.options
        if (
            message.queue_name == queue_name
            and all(isinstance(name, str) for name in (message.actor_name, message.message_id))
            and isinstance(options, dict)
            and isinstance(options.get("redis_message_id"), str)
            and options.keys() <= _OPTIONS
        ):
            return message
    except DecodeError:
        pass
    _log.error("message_unreadable", queue=queue_name)
    return None


class BellBroker(RedisBroker):
    """Dramatiq's Redis broker with our middleware, consumers and priorities."""

    def __init__(
        self, redis_url: str, middleware: Sequence[Middleware] = (), tally: Tally | None = None
    ) -> None:
        """Create the broker without connecting; `tally` counts messages."""
        super().__init__(  # type: ignore[no-untyped-call]
            client=connect(redis_url, _TIMEOUT_SECONDS),
            middleware=[
                GracefulStop(),
                MessageLog(tally or Tally()),
                AgeLimit(),
                TimeLimit(time_limit=TIME_LIMIT_MS, interval=1_000),
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
