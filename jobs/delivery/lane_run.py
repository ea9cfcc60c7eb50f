"""One worker's turn at one lane: claim, send, record, and leave so that other lanes get a turn.

No database transaction is open while a POST is in flight. Claimed rows that are not sent within a
second are handed back: so a change to a webhook applies within that and the attempt in flight.
"""

import secrets
import time
from collections import defaultdict, deque
from dataclasses import dataclass
from uuid import UUID

import structlog

from app import ids, metrics
from app.core.delivery import cancelling, claims, retries
from app.core.delivery.claims import LEASE, Claimed
from app.core.delivery.lanes import lane_health, lanes
from app.core.delivery.lanes.lanes import Slot
from app.core.webhooks import webhook_secrets
from app.errors import Unavailable
from app.lib.crypto.webhook_signing import Signer
from app.lib.outbound.client import DEADLINE_SECONDS
from jobs.delivery.attempt import Made, Sender
from jobs.process.bulkhead import Permit
from jobs.process.middleware import shutting_down
from jobs.process.runtime import Runtime

_log = structlog.get_logger(__name__)

TURN_SECONDS = 5.0
# A claim is what should be sent in half a second: the rest of one that takes longer than this is
# handed back, and the next claims are smaller.
SLOWER_SECONDS = 2 * lane_health.CLAIM_SECONDS
# An attempt, and the write of its outcome, must fit into the rest of the lease.
LEASE_NEEDED_SECONDS = DEADLINE_SECONDS + 2.0
SETTLE_SECONDS = 5.0
# Seconds between tries to free the slot (backoff); each try may wait two seconds for a lock.
WAITS_FOR_THE_DATABASE = (0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True)
class Batch:
    """The `unsent` deliveries of one claim; more may wait if it is `full`.

    `leased_at` is the lease's start at the earliest, by the monotonic clock.
    """

    unsent: deque[Claimed]
    full: bool
    sender: Sender
    leased_at: float


class LaneRun:
    """One turn; `run` does it all."""

    def __init__(self, runtime: Runtime, tenant_id: UUID, webhook_id: UUID) -> None:
        """Prepare a turn."""
        self._runtime = runtime
        self._key = (tenant_id, webhook_id)
        self._holder = secrets.randbits(63)
        self._began = time.monotonic()
        self._permit: Permit | None = None
        self._slot: Slot | None = None
        self._result = "nothing_due"
        self._more_to_cancel = False
        self._ticket = 0
        self._sent = 0
        self._failures_in_a_row = 0
        self._stop = False
        self._burst = runtime.outbound.burst(webhook_id)
        self._unsettled: Made | None = None
        # By the reason why they were not sent, or are to be sent again.
        self._unsent: defaultdict[str, list[Claimed]] = defaultdict(list)

    def run(self) -> None:
        """Send due rows until the turn is over, the lane is empty, or the lane must rest."""
        # Before the claim: a row that is committed from here on must ring again.
        if self._runtime.bell.end_debounce(self._key[1]):
            self._runtime.tally.add(metrics.TURNS, "lane_full")
            return
        try:
            batch = self._claim()
            while batch is not None and batch.unsent:
                self._send(batch)
                # A short batch had all due rows; `_leave` finds rows that came since.
                if self._stop or not batch.full or self._is_over():
                    break
                # Before the lane is looked at for rows, here and in `_leave`: one that is committed
                # from here on must ring again.
                self._runtime.bell.note_full(self._key[1], full=False)
                batch = self._claim()
        finally:
            self._runtime.tally.add(metrics.TURNS, "sent" if self._sent else self._result)
            self._leave()

    def _claim(self) -> Batch | None:
        """Claim rows, with a slot that is taken or kept; None if this turn may not send."""
        began, runtime = time.monotonic(), self._runtime
        with runtime.database.raw_transaction(self._key[0]) as session:
            lane = lanes.load(session, *self._key)
            loaded_at = time.monotonic()
            if lane is None or lane.suspended:
                self._result = "nothing_due" if lane is None else "held"
                return None
            if not lane.sends:
                self._result = "not_sending"
                self._more_to_cancel = cancelling.cancel_some(session, *self._key)
                return None
            if self._slot is not None and lane.paused:
                return None
            if self._permit is None:
                self._permit = runtime.bulkhead.acquire(*self._key, slow=lane.slow)
            if self._permit is None:
                self._result = "no_room"
                return None
            slot = lanes.hold_slot(session, lane, self._holder)
            if slot is None:
                self._result = "no_slot"
                return None
            # Raises if the master key is missing here: the rollback then frees the slot.
            signing, target = webhook_secrets.open_lane(runtime.settings.master_keys, lane)
            limit = 1 if lane.probes else lane_health.claim_size(lane.latency_ms)
            claim = claims.claim(session, lane, limit)
        self._slot, claimed = slot, claim()
        runtime.tally.add(metrics.CLAIMS, count=len(claimed))
        runtime.tally.add(metrics.CLAIMS_LOST, count=sum(each.taken_over for each in claimed))
        full = len(claimed) == limit and not lane.probes
        if slot.held < lane.allowed:
            if full:
                # Another turn may send what is left.
                runtime.bell.ring_lanes([self._key])
        elif not lane.slow:
            # Unless its POSTs are slow: a turn is long then.
            runtime.bell.note_full(self._key[1], full=True)
        sender = Sender(runtime, self._burst, Signer(signing), target, lane, loaded_at, slot.number)
        return Batch(deque(claimed), full, sender, began)

    def _send(self, batch: Batch) -> None:
        claimed = len(batch.unsent)
        while batch.unsent:
            if why := self._why_not_start(batch, first=len(batch.unsent) == claimed):
                self._stop = True
                self._unsent[why] += batch.unsent
                break
            self._settle()
            made = self._unsettled = batch.sender.attempt(batch.unsent.popleft())
            self._sent += 1
            # The turn ends at an endpoint that fails or asks to slow down.
            outcome = made.outcome
            failed = outcome.verdict.blame is retries.Blame.ENDPOINT
            self._failures_in_a_row = self._failures_in_a_row + 1 if failed else 0
            self._stop = (
                self._failures_in_a_row >= lane_health.FAILURES_BEFORE_PAUSE
                or outcome.status_code in retries.SLOW_DOWN
                or outcome.verdict.gone
                or outcome.probe
            )

    def _why_not_start(self, batch: Batch, *, first: bool) -> str | None:
        """Return the reason not to start the next attempt, or None."""
        age = time.monotonic() - batch.leased_at
        if self._stop:
            return "lane_failed"
        if shutting_down():
            return "shutdown"
        if LEASE.total_seconds() - age < LEASE_NEEDED_SECONDS:
            return "lease"
        if self._is_over():
            return "turn_over"
        return "slower_than_claimed" if age > SLOWER_SECONDS and not first else None

    def _is_over(self) -> bool:
        return time.monotonic() - self._began > TURN_SECONDS

    def _settle(self) -> None:
        """Record the last outcome, or hand its row back to be sent again.

        As late as may be, just before the next request or at the end, so that what stands behind
        its answer has come.
        """
        made, self._unsettled = self._unsettled, None
        if made is None:
            return
        if made.settle():
            self._ticket = self._runtime.flusher.put(made.outcome)
        else:
            self._unsent["answer_in_doubt"].append(made.claimed)

    def _leave(self) -> None:
        """Once outcomes are written, hand back unsent rows, free the slot, ring if due again.

        A turn that sent nothing leaves that to the sweep, each second. So does a slow lane whose
        tenant has no further thread: the sweep rings the longest waiting lanes first.
        """
        due, yields = False, False
        try:
            self._settle()
            self._burst.close()
            if self._slot is not None:
                self._runtime.flusher.wait(self._ticket, SETTLE_SECONDS)
                # Whoever noted that the lane is full: now a slot is free.
                self._runtime.bell.note_full(self._key[1], full=False)
                due = self._free_slot()
        finally:
            if self._permit is not None:
                yields = self._runtime.bulkhead.should_yield(self._permit)
                self._runtime.bulkhead.release(self._permit)
        if (due and self._sent and not yields) or self._more_to_cancel:
            self._runtime.bell.ring_lanes([self._key])

    def _free_slot(self) -> bool:
        """Free slot and rows; return whether the lane is due. Retries while the database is away.

        Raises `Unavailable` in the end; slot and rows are free when their leases end.
        """
        for wait in WAITS_FOR_THE_DATABASE:
            try:
                return self._try_to_free_slot()
            except Unavailable:
                time.sleep(wait)
        return self._try_to_free_slot()

    def _try_to_free_slot(self) -> bool:
        with self._runtime.database.raw_transaction(self._key[0]) as session:
            lanes.lock(session, [self._key])
            counts = {
                why: claims.hand_back(session, self._key[0], rows)
                for why, rows in self._unsent.items()
            }
            due = lanes.reschedule(session, *self._key, leaves=self._holder)
        for why, count in counts.items():
            self._runtime.tally.add(metrics.HANDED_BACK, why, count=count)
            _log.info(
                "leases_released",
                tenant_id=ids.text("ten", self._key[0]),
                webhook_id=ids.text("whk", self._key[1]),
                count=count,
                reason=why,
            )
        return due
