"""Wake-ups of a worker: one pub/sub subscription per process sets one event per queue.

Dramatiq's polling notices a message after 0.4 s or costs a hundred commands a second. Lost wake-ups
do no harm: after each (re)connection all queues are woken, and while the subscription is down
`heard` is false and consumers poll.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from threading import Event, Lock, Thread

import redis
import structlog
from redis.client import PubSub

from app.lib.stores import reason
from app.queue import WAKE_CHANNEL

_log = structlog.get_logger(__name__)

_READ_SECONDS = 1.0
_PING_AFTER_SECONDS = 5.0
_DEAD_AFTER_SECONDS = 15.0
_FIRST_BACKOFF_SECONDS = 0.1
_LONGEST_BACKOFF_SECONDS = 2.0


class WakeListener:
    """Sets a queue's event when the bell rings for it."""

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
                    _log.warning(
                        "wakeup_subscription_lost",
                        error=type(error).__name__,
                        reason=reason(error),
                    )
            self._deaf()
            self._stopping.wait(backoff)
            backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)

    def _listen(self, subscription: PubSub) -> None:
        """Set events until told to stop; raises `redis.TimeoutError` on a silent connection."""
        last_word = time.monotonic()
        while not self._stopping.is_set():
            message = subscription.get_message(timeout=_READ_SECONDS)
            silence = time.monotonic() - last_word
            if message is not None:
                last_word = time.monotonic()
                self._hear(message["type"], message["data"])
            elif silence > _DEAD_AFTER_SECONDS:
                raise redis.TimeoutError("the subscription has gone silent")
            elif silence > _PING_AFTER_SECONDS:
                subscription.ping()

    def _hear(self, kind: str, data: bytes | int) -> None:
        if kind == "subscribe":
            self.heard = True
            self._wake(self._events)
        elif kind == "message" and isinstance(data, bytes):
            self._wake([data.decode("utf-8", "replace")])

    def _deaf(self) -> None:
        """Wake all consumers once; they poll from now on."""
        self.heard = False
        self._wake(self._events)

    def _wake(self, queue_names: Iterable[str]) -> None:
        with self._lock:
            for event in [self._events[name] for name in queue_names if name in self._events]:
                event.set()
