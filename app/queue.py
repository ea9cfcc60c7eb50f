"""The bell: enqueues Dramatiq messages and wakes the workers; the only such code in `app/`.

A message only names a row that is due. Redis's errors are counted, never raised: the sweep rings
again from the rows, and a circuit breaker skips a failing Redis. Messages have Dramatiq's format
(`dispatch.lua`); a PUBLISH in the same MULTI wakes `jobs/process/broker.py`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import redis
import structlog
from dramatiq import Message
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.retry import Retry
from redis.sentinel import Sentinel

from app import heartbeats, metrics
from app.lib.breaker import Breaker
from app.lib.metric_registry import Tally
from app.lib.stores import Sentinels, reason

_log = structlog.get_logger(__name__)

_Answer = TypeVar("_Answer")
LaneKey = tuple[UUID, UUID]

# The actors of each queue. All names are wire format: add, never rename.
QUEUES: Final[Mapping[str, Sequence[str]]] = {
    "deliver": ["deliver"],
    "jobs": ["run_job", "integrate", "judge", "assemble", "seal_sessions"],
    "tick": [
        *("sweep", "expire_bundles", "expire_findings", "archive_audit", "tend_objects"),
        *("sweep_objects", "send_digests", "send_alerts", "figure_tenants", "prune_history"),
        *("anchor_audit", "stamp_checkpoint", "cosign_checkpoint", "verify_audit"),
        *("check_master_keys", "reseal", "free_stuck_jobs", "look_at_backlog", "index_words"),
        "complete_idle_sessions",
    ],
}
ACTORS: Final[Mapping[str, str]] = {
    actor: queue for queue, actors in QUEUES.items() for actor in actors
}

WAKE_CHANNEL: Final = "bell"
# Ends the name of a lane's flag that says that all its slots are held.
_FULL: Final = ":full"

_TIMEOUT_SECONDS = 0.5
_BREAK_SECONDS = 5.0
_FLAG_MS, _FULL_MS = 2_000, 500
# The longest queue: one without consumers stops growing here, since the rows stay due.
_MOST_WAITING = 10_000
_MESSAGES_A_COMMAND = 500
# Between two rings of a process, so that many commits in a row ring together; the first is at once.
# While all that is rung waits for a worker already, up to the longest pause.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.004, 0.016
# Rings the lanes that are neither debounced nor full. KEYS: the queue, its messages, a flag a lane.
# ARGV: the longest queue, the flag's milliseconds, the queue's name, then an id and a message a
# lane. Returns how many were rung, or -1 for a queue that is too long.
_RING_LANES = f"""
if redis.call("LLEN", KEYS[1]) >= tonumber(ARGV[1]) then return -1 end
local rung = 0
for flag = 3, #KEYS do
  if redis.call("EXISTS", KEYS[flag] .. "{_FULL}") == 0
     and redis.call("SET", KEYS[flag], 1, "PX", ARGV[2], "NX") then
    local id, message = ARGV[flag * 2 - 2], ARGV[flag * 2 - 1]
    redis.call("HSET", KEYS[2], id, message)
    redis.call("RPUSH", KEYS[1], id)
    rung = rung + 1
  end
end
if rung > 0 then redis.call("PUBLISH", "{WAKE_CHANNEL}", ARGV[3]) end
return rung
"""


def connect(redis_url: str, timeout_seconds: float) -> redis.Redis:
    """Return a client that times out after `timeout_seconds` and never retries.

    redis-py's own defaults block for 4 s on a refused connection, a minute on a hung one. Behind
    Sentinels each new connection asks for the primary; one that is a replica is left at a write.
    """
    how: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "socket_keepalive": True,
        "retry": Retry(NoBackoff(), 0),
    }
    sentinels = Sentinels.parse(redis_url)
    if sentinels is None:
        return redis.Redis.from_url(redis_url, **how)
    asked: Any = Sentinel  # redis-py has no types for it
    options = {**sentinels.sentinel_options, **how}
    primary = asked(sentinels.hosts, sentinel_kwargs=options).master_for
    client: redis.Redis = primary(sentinels.service, **sentinels.redis_options, **how)
    return client


def queue_key(queue_name: str) -> str:
    """Return the Redis key of the list that Dramatiq keeps for a queue."""
    return f"dramatiq:{queue_name}"


def _messages_key(queue_name: str) -> str:
    return f"{queue_key(queue_name)}.msgs"


def push(
    pipe: Pipeline,
    actor_name: str,
    calls: Sequence[Sequence[UUID | str]],
    *,
    max_age_ms: int | None = None,
) -> None:
    """Add to a pipeline the commands that enqueue one message a call; `wake` follows.

    A call is the actor's arguments: ids, the tenant's first. A message older than `max_age_ms` is
    dropped by its consumer. Raises `KeyError` for a name that is not in `ACTORS`.
    """
    queue_name = ACTORS[actor_name]
    options = {} if max_age_ms is None else {"max_age": max_age_ms}
    for start in range(0, len(calls), _MESSAGES_A_COMMAND):
        messages = {
            message.options["redis_message_id"]: message.encode()
            for message in (
                _message(actor_name, arguments, options)
                for arguments in calls[start : start + _MESSAGES_A_COMMAND]
            )
        }
        pipe.hset(_messages_key(queue_name), mapping=messages)
        pipe.rpush(queue_key(queue_name), *messages)


def wake(pipe: Pipeline, actor_names: Iterable[str]) -> None:
    """Wake the workers for messages of these actors, once a queue."""
    for queue_name in {ACTORS[name] for name in actor_names}:
        pipe.publish(WAKE_CHANNEL, queue_name)


class Bell:
    """Rings actors by name, after the commit; one a process. Redis's faults raise nothing here."""

    def __init__(
        self,
        redis_url: str | None,
        tally: Tally | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a client without connecting; without a URL the bell never rings."""
        self._redis = connect(redis_url, _TIMEOUT_SECONDS) if redis_url else None
        self._breaker = Breaker(_BREAK_SECONDS, clock)
        self.tally = tally or Tally()
        self.trouble: str | None = None

    def ring_lanes(self, lanes: Iterable[LaneKey]) -> int:
        """Ring `deliver` for each lane (tenant, webhook); return how many were not debounced.

        A lane is, from its ring until a worker takes it, for two seconds at most.
        """
        wanted = list(dict.fromkeys(lanes))
        if not wanted:
            return 0
        self.tally.add(metrics.BELL_RINGS)

        def ring(client: redis.Redis) -> int:
            script, all_rung = client.register_script(_RING_LANES), 0
            for start in range(0, len(wanted), _MESSAGES_A_COMMAND):
                keys = [queue_key("deliver"), _messages_key("deliver")]
                values: list[str | int | bytes] = [_MOST_WAITING, _FLAG_MS, "deliver"]
                for lane in wanted[start : start + _MESSAGES_A_COMMAND]:
                    message = _message("deliver", lane, {})
                    keys.append(_flag(lane[1]))
                    values += [message.message_id, message.encode()]
                rung = int(script(keys, values))
                if rung < 0:
                    self.tally.add(metrics.BELL_SKIPPED)
                    break
                self.tally.add(metrics.BELL_MESSAGES, count=rung)
                all_rung += rung
            return all_rung

        return self._ask(ring) or 0

    def ring(
        self, actor_name: str, arguments: Sequence[UUID | str], *, max_age_ms: int | None = None
    ) -> None:
        """Ring one actor with its arguments. Raises `KeyError` for a name not in `ACTORS`."""
        self.ring_many(actor_name, [arguments], max_age_ms=max_age_ms)

    def ring_many(
        self,
        actor_name: str,
        calls: Sequence[Sequence[UUID | str]],
        *,
        max_age_ms: int | None = None,
    ) -> None:
        """Ring one actor once with each call's arguments. Raises `KeyError` for an unknown name."""
        if actor_name not in ACTORS:
            raise KeyError(actor_name)
        if not calls:
            return
        self.tally.add(metrics.BELL_RINGS)

        def ring(client: redis.Redis) -> None:
            with client.pipeline(transaction=True) as pipe:
                push(pipe, actor_name, calls, max_age_ms=max_age_ms)
                wake(pipe, [actor_name])
                pipe.execute()
            self.tally.add(metrics.BELL_MESSAGES, count=len(calls))

        self._ask(ring)

    def end_debounce(self, webhook_id: UUID) -> bool:
        """Let a lane be rung again: a worker is about to look at it. Return whether it is full."""
        flag = _flag(webhook_id)

        def end(client: redis.Redis) -> bool:
            with client.pipeline(transaction=False) as pipe:
                pipe.delete(flag)
                pipe.exists(flag + _FULL)
                return bool(pipe.execute()[1])

        return bool(self._ask(end))

    def note_full(self, webhook_id: UUID, *, full: bool) -> None:
        """Leave a lane unrung, half a second at most, while all its slots are held; or ring it.

        Whoever holds a slot looks for rows anew once it has noted that the lane is not full.
        """
        key = _flag(webhook_id) + _FULL
        self._ask(lambda client: client.set(key, 1, px=_FULL_MS) if full else client.delete(key))

    def presence(self) -> dict[heartbeats.Role, bool] | None:
        """Return whether a worker and a scheduler are up, or None when Redis does not answer."""
        return self._ask(heartbeats.presence)

    def report(self, process: heartbeats.Process) -> None:
        """Write this process's heartbeat report, if there is a Redis."""
        if self._redis is not None:
            self._ask(lambda client: heartbeats.report(client, process))

    def processes(self) -> list[heartbeats.Process] | None:
        """Return the recent report of every process, or None when Redis does not answer."""
        return self._ask(heartbeats.processes)

    def close(self) -> None:
        """Close the connections."""
        if self._redis is not None:
            self._redis.close()

    def _ask(self, question: Callable[[redis.Redis], _Answer]) -> _Answer | None:
        if self._redis is None or not self._breaker.admits():
            self.tally.add(metrics.BELL_SKIPPED)
            return None
        try:
            answer = question(self._redis)
        except redis.RedisError as error:
            self.tally.add(metrics.BELL_ERRORS)
            self.trouble = reason(error)
            if self._breaker.failed():
                _log.warning("redis_unavailable", error=type(error).__name__, reason=self.trouble)
            return None
        if self._breaker.succeeded():
            _log.info("redis_recovered")
        return answer


class WakeupBatcher:
    """Rings lanes from a thread, so that no request waits for Redis; one a process.

    Lanes requested during a ring go out with the next one, each once.
    """

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._changed = threading.Condition()
        self._waiting: dict[LaneKey, None] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def ring(self, lanes: Iterable[LaneKey]) -> None:
        """Have each lane, named by (tenant id, webhook id), rung soon; returns at once."""
        with self._changed:
            self._waiting.update(dict.fromkeys(lanes))
            # Started by the first ring: a process that forks afterwards takes no thread along.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="wakeups", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, timeout: float = 2.0) -> None:
        """Ring what is left, for at most `timeout` seconds, and end."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        pause = _PAUSE_SECONDS
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping.is_set())
                lanes, self._waiting = list(self._waiting), {}
            if not lanes:
                return
            began = time.monotonic()
            rung = self._bell.ring_lanes(lanes)
            pause = _PAUSE_SECONDS if rung else min(pause * 2, _LONGEST_PAUSE_SECONDS)
            self._stopping.wait(max(began + pause - time.monotonic(), 0.0))


def _flag(webhook_id: UUID) -> str:
    return f"bell:{webhook_id.hex}"


def _message(
    actor_name: str, arguments: Sequence[UUID | str], options: Mapping[str, int]
) -> Message[None]:
    identifier = str(uuid4())
    return Message(
        queue_name=ACTORS[actor_name],
        actor_name=actor_name,
        args=tuple(str(argument) for argument in arguments),
        kwargs={},
        options={"redis_message_id": identifier, **options},
        message_id=identifier,
    )
