"""The clock: rq-scheduler keeps the timetable in Redis; due entries become Dramatiq messages.

Redis may lose or corrupt data, so each poll reconciles it with `scheduler/timetable.py`: missing
entries are added and rung, unknown ones dropped, wrong times corrected. Of several schedulers the
holder of the lock (the leader) rings; another takes over within 11 seconds.
"""

import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import FrameType
from typing import Final

import redis
import structlog
from rq_scheduler import Scheduler

from app import heartbeats, queue
from app.lib.stores import reason
from scheduler.timetable import Entry

_log = structlog.get_logger(__name__)

# A frozen Redis blocks a poll for so long.
TIMEOUT_SECONDS = 0.5
_POLL_SECONDS: Final = 1
_LOCK_SECONDS = _POLL_SECONDS + 10
_STOP_SECONDS = 0.1
# Without a worker, no more than this many expiring rings are queued: a later one does their work.
_MOST_WAITING = 100


class Clock(Scheduler):  # type: ignore[misc]  # rq-scheduler is not typed
    """rq-scheduler with a declared timetable, ringing Dramatiq's actors; no RQ worker exists."""

    def __init__(self, connection: redis.Redis, timetable: Mapping[str, Entry]) -> None:
        """Set up; the name is random, as a fixed one could not restart for 11 s after a kill -9."""
        super().__init__(connection=connection, interval=_POLL_SECONDS)
        self._timetable = timetable
        self._stopping = False
        self._away = False
        self._beat_at = 0.0
        self._led = False
        self._waiting: Counter[str] = Counter()

    def run(self, burst: bool = False) -> None:
        """Ring due entries at each full second until told to stop; with `burst` only once."""
        self._install_signal_handlers()
        _log.info("clock_started", entries=sorted(self._timetable))
        while not self._stopping:
            self.poll()
            if burst:
                break
            self._sleep(_POLL_SECONDS - time.time() % _POLL_SECONDS)
        self._leave()
        _log.info("clock_stopped")

    def poll(self) -> None:
        """Ring due entries if this scheduler has the lock; a Redis error is logged, not raised."""
        try:
            self._lead()
        except redis.RedisError as error:
            self._lost(error)
            return
        if self._away:
            self._away = False
            _log.info("redis_recovered")

    def acquire_lock(self) -> bool:
        """Take the lock, or renew it atomically, so it is never free in between."""
        holder = self.connection.set(
            self.scheduler_lock_key, self.name, nx=True, get=True, ex=_LOCK_SECONDS
        )
        self._lock_acquired = holder in (None, self.name.encode())
        if not self._lock_acquired:
            # A lock without an expiry would block every scheduler for ever.
            self.connection.expire(self.scheduler_lock_key, _LOCK_SECONDS, nx=True)
        return self._lock_acquired

    def remove_lock(self) -> None:
        """Release the lock, if this scheduler still holds it."""
        if self.connection.get(self.scheduler_lock_key) == self.name.encode():
            self.connection.delete(self.scheduler_lock_key)
        self._lock_acquired = False

    def enqueue_jobs(self) -> None:
        """Reconcile Redis with the timetable, and ring due entries."""
        now = time.time()
        found = dict(self.connection.zrange(self.scheduled_jobs_key, 0, -1, withscores=True))
        due_now = []
        for entry in self._timetable.values():
            due = found.pop(entry.name.encode(), None)
            if due is None:
                self._put(entry, now)
                due = now
            elif due > entry.next_after(now):
                self._put(entry, entry.next_after(now))
            if due <= now:
                due_now.append(entry)
        if due_now:
            self._ring(due_now, now)
        for unknown in found:
            self._drop(unknown)

    def _install_signal_handlers(self) -> None:
        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stopping = True

        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGTERM, stop)

    def _lead(self) -> None:
        try:
            # The lock outlasts two heartbeats; two leaders would ring twice, which does no harm.
            lately = self._lock_acquired and time.monotonic() < self._beat_at
            leads = lately or self.acquire_lock()
            self._show_life(leads=leads)
            if leads:
                self.enqueue_jobs()
        except redis.ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            # A key of the wrong type in place of the timetable or the lock.
            _log.warning("timetable_unreadable")
            self.connection.delete(self.scheduled_jobs_key, self.scheduler_lock_key)

    def _lost(self, error: redis.RedisError) -> None:
        if not self._away:
            self._away = True
            _log.warning("redis_unavailable", error=type(error).__name__, reason=reason(error))

    def _show_life(self, *, leads: bool) -> None:
        """Report this process, and renew the leader's lock."""
        if time.monotonic() < self._beat_at and leads == self._led:
            return
        if leads:
            self.connection.expire(self.scheduler_lock_key, _LOCK_SECONDS)
        heartbeats.report(self.connection, heartbeats.Process("scheduler", leads=leads))
        self._led = leads
        self._beat_at = time.monotonic() + heartbeats.EVERY_SECONDS

    def _put(self, entry: Entry, moment: float) -> None:
        """Write an entry as rq-scheduler does, so that its tools show it."""
        _log.info("timetable_entry_written", entry=entry.name)
        self.connection.delete(self.job_class.key_for(entry.name))
        self.schedule(
            datetime.fromtimestamp(moment, UTC),
            entry.name,
            id=entry.name,
            queue_name=queue.ACTORS[entry.name],
            meta={"interval": entry.every},
        )

    def _ring(self, due: Sequence[Entry], now: float) -> None:
        """Send the messages, then set the next times: what dies in between rings twice.

        rq-scheduler itself removes an entry before it adds it again: a crash in between loses it.
        """
        rung = [entry for entry in due if not self._is_pointless(entry)]
        with self.connection.pipeline(transaction=False) as pipe:
            for entry in rung:
                max_age_ms = None if entry.max_age is None else entry.max_age * 1000
                queue.push(pipe, entry.name, [()], max_age_ms=max_age_ms)
            queue.wake(pipe, [entry.name for entry in rung])
            next_times = {entry.name: entry.next_after(now) for entry in due}
            pipe.zadd(self.scheduled_jobs_key, next_times, xx=True)
            # HSET and RPUSH of each.
            lengths = pipe.execute()[1::2]
        for entry, length in zip(rung, lengths, strict=False):
            self._waiting[entry.name] = length

    def _is_pointless(self, entry: Entry) -> bool:
        """Say whether an expiring ring is useless because enough of them are queued."""
        if entry.max_age is None or self._waiting[entry.name] < _MOST_WAITING:
            return False
        waiting = self.connection.llen(queue.queue_key(queue.ACTORS[entry.name]))
        return bool(waiting >= _MOST_WAITING)

    def _drop(self, unknown: bytes) -> None:
        _log.info("timetable_entry_removed", entry=unknown.decode("utf-8", "backslashreplace"))
        self.cancel(unknown)
        self.connection.delete(self.job_class.redis_job_namespace_prefix.encode() + unknown)

    def _sleep(self, seconds: float) -> None:
        wake_at = time.monotonic() + seconds
        while not self._stopping and (left := wake_at - time.monotonic()) > 0:
            time.sleep(min(left, _STOP_SECONDS))

    def _leave(self) -> None:
        if self._away:
            return
        try:
            self.remove_lock()
        except redis.RedisError as error:
            self._lost(error)
