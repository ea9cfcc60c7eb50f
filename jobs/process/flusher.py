"""The flusher: one thread per process that writes delivery outcomes in batches.

Senders hand outcomes over and go on. A batch is written after a short window, or at once when a
sender waits. While the database is unavailable batches wait; leases fence late writes.

"""

import threading
from collections.abc import Callable

import structlog

from app import ids, metrics
from app.core.delivery import cancelling, outcomes
from app.core.delivery.cancelling import Reason
from app.core.delivery.lanes.lanes import LaneKey
from app.core.delivery.outcomes import Outcome
from app.database import Database
from app.errors import Unavailable
from app.lib.metric_registry import Tally
from app.queue import Bell
from app.settings import Settings
from jobs.process.middleware import kind

_log = structlog.get_logger(__name__)

WINDOW_SECONDS = 0.05
AT_ONCE = 500
_LONGEST_WAIT = 2.0


class Flusher:
    """The only writer of outcomes in a process; start it once, stop it after the last sender."""

    def __init__(self, database: Database, bell: Bell, settings: Settings, tally: Tally) -> None:
        self._tally = tally
        self._database = database
        self._bell = bell
        self._settings = settings
        # Two conditions of one lock: a new outcome wakes this thread only if it must act, and wakes
        # no sender that waits for a write.
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._written = threading.Condition(lock)
        self._waiting: list[Outcome] = []
        self._handed_over = 0
        self._awaited = 0
        self._settled = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Write the remaining outcomes, for at most `timeout` seconds, and stop."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(timeout)

    def put(self, outcome: Outcome) -> int:
        """Hand an outcome over; return the ticket that `wait` takes."""
        with self._changed:
            self._waiting.append(outcome)
            self._handed_over += 1
            if len(self._waiting) in (1, AT_ONCE):
                self._changed.notify()
            return self._handed_over

    def wait(self, ticket: int, timeout: float) -> bool:
        """Wait until all outcomes up to `ticket` are written; False after `timeout` seconds."""
        with self._changed:
            self._awaited = max(self._awaited, ticket)
            self._changed.notify()
            return self._written.wait_for(lambda: self._settled >= ticket, timeout)

    def _run(self) -> None:
        while batch := self._next():
            widened = self._write(batch)
            with self._changed:
                self._settled += len(batch)
                self._written.notify_all()
            # After the tickets, so that no sender waits for Redis.
            self._bell.ring_lanes(widened)

    def _next(self) -> list[Outcome]:
        """Wait for outcomes and let more gather; empty when stopping and none are left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            if self._waiting:
                self._changed.wait_for(
                    lambda: (
                        len(self._waiting) >= AT_ONCE
                        or self._awaited > self._settled
                        or self._stopping
                    ),
                    WINDOW_SECONDS,
                )
            batch, self._waiting = self._waiting, []
            return batch

    def _write(self, batch: list[Outcome]) -> list[LaneKey]:
        """Write one batch, or its outcomes one by one; return the lanes that may send more."""
        widened: list[LaneKey] = []
        try:
            self._insist(lambda: widened.extend(self._record(batch)))
        except Exception as error:  # noqa: BLE001  # this thread must outlive whatever a row holds
            _log.critical("outcomes_refused", count=len(batch), error=kind(error))
            if len(batch) == 1:
                self._tally.add(metrics.REFUSED)
                return []
            return [lane for outcome in batch for lane in self._write([outcome])]
        return widened

    def _record(self, batch: list[Outcome]) -> list[LaneKey]:
        with self._database.across_tenants(scans=False) as session:
            recorded = outcomes.record(
                session,
                batch,
                first_pause=self._settings.first_pause,
                disable_after=self._settings.disable_after,
            )
        for each in recorded.fenced:
            _log.warning(
                "outcome_fenced",
                tenant_id=ids.text("ten", each.tenant_id),
                webhook_id=ids.text("whk", each.webhook_id),
                delivery_id=ids.text("dlv", each.delivery_id),
                attempt=each.number,
                claim_no=each.claim_no,
                outcome=each.outcome,
            )
        self._tally.add(metrics.FENCED, count=len(recorded.fenced))
        for (delivery_kind, status), count in recorded.ended.items():
            self._tally.add(metrics.DELIVERIES, delivery_kind, status, count=count)
        self._tally.add(metrics.PAUSES, count=recorded.pauses)
        for key, reason in recorded.to_follow.items():
            self._follow_up(key, reason)
        return recorded.widened

    def _follow_up(self, lane: LaneKey, reason: Reason) -> None:
        """Disable a webhook or warn of it; the outcomes are written and stay so if that fails."""

        def follow() -> None:
            with self._database.transaction(lane[0]) as session:
                done = cancelling.follow(session, *lane, reason, self._settings.disable_after)
            if done and not reason.warns:
                self._tally.add(metrics.DISABLED, reason.code)

        try:
            self._insist(follow)
        except Exception as error:  # noqa: BLE001  # the lane's next failed attempt asks again
            _log.error(
                "webhook_not_warned" if reason.warns else "webhook_not_disabled",
                tenant_id=ids.text("ten", lane[0]),
                webhook_id=ids.text("whk", lane[1]),
                error=kind(error),
            )

    def _insist(self, work: Callable[[], None]) -> None:
        """Run `work`; retry with backoff while the database is unavailable, until stopped."""
        wait = 0.1
        while True:
            try:
                return work()
            except Unavailable as error:
                _log.warning("outcomes_not_written", error=kind(error), again_in=wait)
            with self._changed:
                if self._changed.wait_for(lambda: self._stopping, wait):
                    # Stopping without a database: the rows come back when their leases end.
                    return None
            wait = min(wait * 2, _LONGEST_WAIT)
