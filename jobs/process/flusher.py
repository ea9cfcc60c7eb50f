"""The flusher: one thread per process that writes delivery outcomes in batches.

Senders hand outcomes over and go on. A batch is written after a short window, or at once when a
sender waits. Claimed but unsent rows are handed back the same way. While the database is
unavailable batches wait; leases fence late writes.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import structlog

from app import ids, metrics
from app.core.delivery import claims, disabling, outcomes
from app.core.delivery.claims import Claimed
from app.core.delivery.disabling import Reason
from app.core.delivery.lanes import concurrency, lanes
from app.core.delivery.lanes.lane_changes import LaneKey
from app.core.delivery.outcomes import Outcome, Recorded
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


@dataclass(frozen=True)
class _Unsent:
    lane: LaneKey
    rows: Sequence[Claimed]
    why: str
    stalled: bool


@dataclass
class _Waiting:
    outcomes: list[Outcome] = field(default_factory=list)
    slow: set[LaneKey] = field(default_factory=set)
    unsent: list[_Unsent] = field(default_factory=list)

    @property
    def tickets(self) -> int:
        """The number of entries with a ticket that a sender may wait for."""
        return len(self.outcomes) + len(self.unsent)

    def pieces(self) -> list["_Waiting"]:
        """Return what can be written on its own: each outcome, and the slow lanes."""
        pieces = [_Waiting([outcome]) for outcome in self.outcomes]
        return [*pieces, _Waiting(slow=self.slow)] if self.slow else pieces


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
        self._waiting = _Waiting()
        self._handed_over = 0
        self._awaited = 0
        self._settled = 0
        self._to_ring: list[LaneKey] = []
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
            self._waiting.outcomes.append(outcome)
            return self._ticket()

    def give_back(
        self, lane: LaneKey, rows: Sequence[Claimed], why: str, *, stalled: bool = False
    ) -> int:
        """Queue unsent claimed rows to be handed back; return the ticket for `wait`.

        `stalled` says that the POST before them has stalled: rings other workers to take them.
        """
        with self._changed:
            self._waiting.unsent.append(_Unsent(lane, rows, why, stalled))
            self._changed.notify()
            return self._ticket()

    def mark_slow(self, tenant_id: UUID, webhook_id: UUID) -> None:
        """Note that a POST of this lane has been in flight for over a second."""
        with self._changed:
            self._waiting.slow.add((tenant_id, webhook_id))
            self._changed.notify()

    def wait(self, ticket: int, timeout: float) -> bool:
        """Wait until all entries up to `ticket` are written; False after `timeout` seconds."""
        with self._changed:
            self._awaited = max(self._awaited, ticket)
            self._changed.notify()
            return self._written.wait_for(lambda: self._settled >= ticket, timeout)

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            if batch.outcomes or batch.slow:
                self._write(batch)
            for unsent in batch.unsent:
                self._return(unsent)
            with self._changed:
                self._settled += batch.tickets
                self._written.notify_all()
            # After the tickets, so that no sender waits for Redis. Ignores the debounce, as lanes
            # without a free slot may be debounced.
            self._bell.ring_lanes(self._to_ring, ignore_debounce=True)
            self._to_ring.clear()

    def _next(self) -> _Waiting | None:
        """Wait for entries and let more gather; None when stopping and none are left."""
        with self._changed:
            self._changed.wait_for(lambda: self._any() or self._stopping)
            if not self._any():
                return None
            self._changed.wait_for(self._hurries, WINDOW_SECONDS)
            batch, self._waiting = self._waiting, _Waiting()
            return batch

    def _hurries(self) -> bool:
        """Say whether the waiting entries should be written before the window ends."""
        waiting = self._waiting
        enough = waiting.tickets >= AT_ONCE or bool(waiting.unsent)
        return enough or self._awaited > self._settled or self._stopping

    def _any(self) -> bool:
        return bool(self._waiting.tickets or self._waiting.slow)

    def _ticket(self) -> int:
        self._handed_over += 1
        if self._waiting.tickets in (1, AT_ONCE):
            self._changed.notify()
        return self._handed_over

    def _write(self, batch: _Waiting) -> None:
        """Write one batch; outcomes that cannot be written together are written one by one."""
        try:
            self._insist(lambda: self._record(batch))
        except Exception as error:  # noqa: BLE001  # this thread must outlive whatever a row holds
            _log.critical("outcomes_refused", count=len(batch.outcomes), error=kind(error))
            pieces = batch.pieces()
            if len(pieces) > 1:
                for piece in pieces:
                    self._write(piece)
            else:
                self._tally.add(metrics.REFUSED, count=len(batch.outcomes))

    def _record(self, batch: _Waiting) -> None:
        with self._database.across_tenants() as session:
            recorded = outcomes.record(
                session,
                batch.outcomes,
                slow=sorted(batch.slow),
                first_pause=self._settings.first_pause,
                disable_after=self._settings.disable_after,
            )
        self._note(recorded)
        self._to_ring += recorded.widened
        for key, reason in recorded.to_disable.items():
            self._follow_up("webhook_not_disabled", key, partial(self._disable, key, reason))
        for key, reason in recorded.to_warn.items():
            self._follow_up("webhook_not_warned", key, partial(self._warn, key, reason))

    def _note(self, recorded: Recorded) -> None:
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

    def _follow_up(self, failure: str, lane: LaneKey, work: Callable[[], None]) -> None:
        """Run `work`, which follows from outcomes that are written and stay so if it fails."""
        try:
            self._insist(work)
        except Exception as error:  # noqa: BLE001  # the lane's next failed attempt asks again
            tenant_id, webhook_id = lane
            _log.error(
                failure,
                tenant_id=ids.text("ten", tenant_id),
                webhook_id=ids.text("whk", webhook_id),
                error=kind(error),
            )

    def _return(self, unsent: _Unsent) -> None:
        try:
            self._insist(partial(self._hand_back, unsent))
        except Exception as error:  # noqa: BLE001  # as above; their leases bring the rows back
            _log.critical("leases_not_released", count=len(unsent.rows), error=kind(error))

    def _hand_back(self, unsent: _Unsent) -> None:
        tenant_id, webhook_id = unsent.lane
        with self._database.transaction(tenant_id) as session:
            lanes.lock(session, tenant_id, webhook_id)
            count = claims.hand_back(session, tenant_id, unsent.rows)
            if unsent.stalled:
                lanes.note_stall(session, tenant_id, webhook_id, concurrency.CLAIM_SECONDS * 1000)
            lanes.reschedule(session, tenant_id, webhook_id)
        if unsent.stalled:
            self._to_ring.append(unsent.lane)
        self._tally.add(metrics.HANDED_BACK, unsent.why, count=count)
        _log.info(
            "leases_released",
            tenant_id=ids.text("ten", tenant_id),
            webhook_id=ids.text("whk", webhook_id),
            count=count,
            reason=unsent.why,
        )

    def _disable(self, lane: LaneKey, reason: Reason) -> None:
        tenant_id, webhook_id = lane
        with self._database.transaction(tenant_id) as session:
            disabled = disabling.disable(session, tenant_id, webhook_id, reason)
        if disabled:
            self._tally.add(metrics.DISABLED, reason.code)

    def _warn(self, lane: LaneKey, reason: Reason) -> None:
        tenant_id, webhook_id = lane
        with self._database.transaction(tenant_id) as session:
            disabling.warn(session, tenant_id, webhook_id, reason, self._settings.disable_after)

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
