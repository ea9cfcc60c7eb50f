"""Dramatiq's consumer of one queue, woken by pub/sub instead of polling.

It polls Redis only every 20 seconds, which is its heartbeat, and survives a lost or frozen Redis. A
failed message is not kept as a dead letter: its row is due again.
"""

import time
from collections.abc import Iterable

import redis
import structlog
from dramatiq import BrokerConnectionError, Message, MessageProxy
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.errors import DecodeError

from app.lib.stores import reason
from app.queue import WAKE_CHANNEL
from jobs.process.wakeup_listener import WakeListener

_log = structlog.get_logger(__name__)

# Dramatiq's threads check their stop flag at this interval.
_LONGEST_WAIT_SECONDS = 0.5
# A process that is silent for 60 s loses its messages to others.
_UNBIDDEN_SECONDS = 20.0
_DEAF_SECONDS = 1.0
_RETRY_SECONDS = 1.0

_OPTIONS = {"redis_message_id", "max_age"}


class BellConsumer(_RedisConsumer):
    """The messages of one queue for one worker process."""

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
        return None

    def ack(self, message: MessageProxy) -> None:
        """Delete a message. Without Redis it stays with this process, and does no harm."""
        try:
            super().ack(message)  # type: ignore[no-untyped-call]
        except (redis.RedisError, BrokerConnectionError) as error:
            self._lost(error)
        if self._full and self._room() >= self._batch:
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
        room = self._room()
        self._fetch_at = time.monotonic() + (
            _UNBIDDEN_SECONDS if self._listener.heard else _DEAF_SECONDS
        )
        if room >= self._batch:
            self._full = False
            self._fetch(room)

    def _fetch(self, room: int) -> None:
        try:
            self.message_cache = list(self.broker.do_fetch(self.queue_name, room))
        except redis.RedisError as error:
            self._lost(error)
            self._fetch_at = time.monotonic() + _RETRY_SECONDS
            return
        if self._away:
            self._away = False
            _log.info("queue_recovered", queue=self.queue_name)
        if len(self.message_cache) == room:
            self._wake.set()

    def _room(self) -> int:
        return int(self.prefetch - self.outstanding_message_count)

    def _lost(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            _log.warning(
                "queue_unavailable",
                queue=self.queue_name,
                error=type(error).__name__,
                reason=reason(error),
            )


def _read(data: bytes | None, queue_name: str) -> Message[None] | None:
    """Decode a message; None if it was dropped meanwhile or is not from this service."""
    if data is None:
        return None
    try:
        message: Message[None] = Message.decode(data)
        if _is_ours(message, queue_name):
            return message
    except DecodeError:
        pass
    _log.error("message_unreadable", queue=queue_name)
    return None


def _is_ours(message: Message[None], queue_name: str) -> bool:
    """Say whether the message is well-formed: a malformed one would kill Dramatiq's threads."""
    options: object = message.options
    return (
        message.queue_name == queue_name
        and all(isinstance(name, str) for name in (message.actor_name, message.message_id))
        and isinstance(options, dict)
        and isinstance(options.get("redis_message_id"), str)
        and options.keys() <= _OPTIONS
    )
