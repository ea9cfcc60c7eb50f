"""Dramatiq's consumer of one queue, woken by pub/sub instead of polling.

It polls Redis only every 20 seconds, and survives a lost or frozen Redis. A failed message is not
kept as a dead letter: its row is due again. The keys are those of Dramatiq's `dispatch.lua`, whose
heartbeat and recovery of dead workers' messages run with each poll.
"""

import time
from collections import deque
from collections.abc import Iterable

import redis
import structlog
from dramatiq import BrokerConnectionError, Message, MessageProxy
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.errors import DecodeError

from app.lib.redis_reasons import reason
from app.queue import WAKE_CHANNEL, messages_key, queue_key
from jobs.process.wakeup_listener import WakeListener

_log = structlog.get_logger(__name__)

# Dramatiq's threads check their stop flag at this interval.
_LONGEST_WAIT_SECONDS = 0.5
# Interval of Dramatiq's own fetch (heartbeat): a process silent for 60 s loses its messages.
_UNBIDDEN_SECONDS = 20.0
_DEAF_SECONDS = 1.0
_RETRY_SECONDS = 1.0

_OPTIONS = {"redis_message_id", "max_age"}

# Lua's unpack fails for more than some thousand values.
_MOST_A_FETCH = 1_000
# Moves ids from the queue (1) to this worker's unacknowledged set (2); returns their messages (3).
_TAKE = """
local ids = redis.call("lpop", KEYS[1], ARGV[1])
if not ids then return {} end
redis.call("sadd", KEYS[2], unpack(ids))
return redis.call("hmget", KEYS[3], unpack(ids))
"""


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
        self._queue_key = queue_key(queue_name)
        self._messages_key = messages_key(queue_name)
        self._taken_key = f"{broker.namespace}:__acks__.{broker.broker_id}.{queue_name}"
        self._take = broker.client.register_script(_TAKE)
        # Single messages would cost a round trip each.
        self._batch = max(1, prefetch // 4)
        self._fetch_at = 0.0
        self._unbidden_at = 0.0
        self._full = False
        self._away = False
        self._unsettled: deque[str] = deque()

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
        """Delete a message, now or, without waiting, when Redis is back."""
        self._settle(message.options["redis_message_id"])
        self.queued_message_ids.discard(message.message_id)
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

    def close(self) -> None:
        """Requeue the messages that were fetched but not handed to a thread."""
        read = [_read(data, self.queue_name) for data in self.message_cache]
        self.message_cache = []
        self.requeue([message for message in read if message is not None])

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
            self._fetch(min(room, _MOST_A_FETCH))

    def _fetch(self, room: int) -> None:
        try:
            self._settle_late()
            self.message_cache = self._messages(room)
        except redis.RedisError as error:
            self._lost(error)
            self._fetch_at = time.monotonic() + _RETRY_SECONDS
            return
        if self._away:
            self._away = False
            _log.info("queue_recovered", queue=self.queue_name)
        if len(self.message_cache) == room:
            self._wake.set()

    def _messages(self, room: int) -> list[bytes | None]:
        if time.monotonic() < self._unbidden_at:
            keys = [self._queue_key, self._taken_key, self._messages_key]
            return list(self._take(keys=keys, args=[room]))
        messages = list(self.broker.do_fetch(self.queue_name, room))
        self._unbidden_at = time.monotonic() + _UNBIDDEN_SECONDS
        return messages

    def _room(self) -> int:
        return int(self.prefetch - self.outstanding_message_count)

    def _settle(self, redis_message_id: str) -> None:
        if self._away:
            self._unsettled.append(redis_message_id)
            return
        try:
            self._forget(redis_message_id)
        except redis.RedisError as error:
            self._unsettled.append(redis_message_id)
            self._lost(error)
            self._wake.set()

    def _settle_late(self) -> None:
        while self._unsettled:
            self._forget(self._unsettled[0])
            self._unsettled.popleft()

    def _forget(self, redis_message_id: str) -> None:
        # In this order an interruption leaves an id without a message, which Dramatiq drops.
        with self.broker.client.pipeline(transaction=False) as pipe:
            pipe.hdel(self._messages_key, redis_message_id)
            pipe.srem(self._taken_key, redis_message_id)
            pipe.execute()

    def _lost(self, error: redis.RedisError) -> None:
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
