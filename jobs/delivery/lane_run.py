"""One worker's turn at one lane: claim, send, record, and leave so that other lanes get a turn.

No database transaction is open while a POST is in flight. Claimed rows that are not sent in time
are handed back: other workers take them.
"""

import time
from collections import defaultdict, deque
from dataclasses import dataclass
from uuid import UUID

import structlog

from app import ids, metrics
from app.core.delivery import cancelling, claims, retries
from app.core.delivery.claims import LEASE, Claimed
from app.core.delivery.lanes import lane_health, lanes
from app.core.delivery.lanes.lanes import Lane, Slot, SlotReader
from app.core.delivery.outcomes import Outcome
from app.core.webhooks import webhook_secrets
from app.database import Tx
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
# A change to a webhook applies within a second and the attempt in flight.
RELOAD_SECONDS = 0.8
# An attempt, and the write of its outcome, must fit into the rest of the lease.
LEASE_NEEDED_SECONDS = DEADLINE_SECONDS + 2.0
SETTLE_SECONDS = 5.0
# Seconds between tries to free the slot (backoff); each try may wait two seconds for a lock.
WAITS_FOR_THE_DATABASE = (0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True)
class Batch:
    """The `unsent` deliveries of one claim.

    `full`: more rows may wait; `ring`: another turn may send them. `leased_at` is the lease's start
    at the earliest: a reading of the monotonic clock from before the claim.
    """

    unsent: deque[Claimed]
    full: bool
    ring: bool
    sender: Sender
    leased_at: float


class LaneRun:
    """One turn; `run` does it all."""

    def __init__(self, runtime: Runtime, tenant_id: UUID, webhook_id: UUID) -> None:
        """Prepare a turn."""
        self._runtime = runtime
        self._key = (tenant_id, webhook_id)
        self._holder = ids.new()
        self._began = time.monotonic()
        self._permit: Permit | None = None
        self._slot: Slot | None = None
        self._entered = False
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
        if self._runtime.full_lanes.drops(self._key):
            self._runtime.tally.add(metrics.TURNS, "lane_full")
            self._runtime.bell.debounce_briefly(self._key[1])
            return
        # Before the claim: a row that is committed from here on must ring again.
        self._runtime.bell.end_debounce(self._key[1])
        try:
            batch = self._claim(first=True)
            while batch is not None and batch.unsent:
                if batch.ring:
                    self._runtime.bell.ring_lanes([self._key])
                self._send(batch)
                # A short batch had all due rows; `_leave` finds rows that came since.
                if self._stop or not batch.full or self._turn_is_over():
                    break
                self._reopen()
                batch = self._claim(first=False)
        finally:
            self._runtime.tally.add(metrics.TURNS, "sent" if self._sent else self._result)
            self._leave()

    def _claim(self, *, first: bool) -> Batch | None:
        """Claim rows, on the `first` call with a slot; None if this turn may not send."""
        began = time.monotonic()
        with self._runtime.database.raw_transaction(self._key[0]) as session:
            lane = lanes.load(session, *self._key)
            if lane is None:
                return None
            loaded_at = time.monotonic()
            if not lane.sends:
                self._result = "not_sending"
                self._more_to_cancel = cancelling.cancel_some(session, *self._key)
                return None
            if lane.suspended:
                self._result = "held"
                return None
            if first:
                slot = self._enter(session, lane)
            else:
                # Awaited: the claim would accept a slot beyond a limit that was lowered.
                kept = None if lane.paused else lanes.keep_slot(session, lane, self._holder)()
                slot = None if kept is None else lambda: kept
            if slot is None:
                return None
            # Raises if the master key is missing here: the rollback then frees the slot.
            master_keys = self._runtime.settings.master_keys
            secrets, target = webhook_secrets.open_lane(master_keys, lane)
            limit = 1 if lane.probes else lane_health.claim_size(lane.latency_ms)
            claim = claims.claim(session, lane, limit, self._holder)
        self._slot = slot()
        if self._slot is None:
            self._result = "no_slot"
            self._close(lane)
            return None
        if not self._entered:
            self._runtime.full_lanes.enter(self._key)
            self._entered = True
        claimed = claim()
        tally = self._runtime.tally
        tally.add(metrics.CLAIMS, count=len(claimed))
        tally.add(metrics.CLAIMS_LOST, count=sum(each.taken_over for each in claimed))
        if self._slot.held >= lane.allowed:
            self._close(lane)
        full = len(claimed) == limit and not lane.probes
        ring = full and self._slot.held < lane.allowed
        sender = Sender(
            self._runtime, self._burst, Signer(secrets), target, lane, loaded_at, self._slot.number
        )
        return Batch(deque(claimed), full=full, ring=ring, sender=sender, leased_at=began)

    def _enter(self, session: Tx, lane: Lane) -> SlotReader | None:
        """Take a permit and start to take a slot; its result arrives with the claim's."""
        self._permit = self._runtime.bulkhead.acquire(*self._key, slow=lane.slow)
        if self._permit is None:
            self._result = "no_room"
            return None
        return lanes.take_slot(session, lane, self._holder)

    def _send(self, batch: Batch) -> None:
        loaded_at, claimed = batch.leased_at, len(batch.unsent)
        while batch.unsent:
            # Checked in this order: the reload may take long, while the lease runs down.
            why = self._why_not_start(batch, loaded_at)
            if len(batch.unsent) < claimed and _age(batch) > SLOWER_SECONDS:
                why = why or "slower_than_claimed"
            if why:
                self._stop = True
                self._unsent[why] += batch.unsent
                break
            if time.monotonic() - loaded_at > RELOAD_SECONDS:
                loaded_at = time.monotonic()
            self._settle()
            made = self._unsettled = batch.sender.attempt(batch.unsent.popleft())
            self._sent += 1
            self._note(made.outcome)

    def _why_not_start(self, batch: Batch, loaded_at: float) -> str | None:
        """Return the reason not to start the next attempt, or None."""
        if not self._unchanged_since(loaded_at, batch.sender.lane):
            return "lane_changed"
        if self._stop:
            return "lane_failed"
        if shutting_down():
            return "shutdown"
        if LEASE.total_seconds() - _age(batch) < LEASE_NEEDED_SECONDS:
            return "lease"
        return "turn_over" if self._turn_is_over() else None

    def _turn_is_over(self) -> bool:
        return time.monotonic() - self._began > TURN_SECONDS

    def _unchanged_since(self, loaded_at: float, lane: Lane) -> bool:
        """Reload the lane if it was loaded over 0.8 s ago; False if it must not be sent to."""
        if time.monotonic() - loaded_at <= RELOAD_SECONDS:
            return True
        try:
            with self._runtime.database.raw_transaction(self._key[0]) as session:
                now = lanes.load(session, *self._key, locked=False)
                return (
                    now is not None
                    and now.sends
                    and not now.suspended
                    and (lane.probes or not now.paused)
                    and (lane.held or not now.held)
                    and _sent_alike(now, lane)
                    and lanes.may_keep_slot(session, now, self._holder)
                )
        except Unavailable:
            return False

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

    def _note(self, outcome: Outcome) -> None:
        """End the turn at a lane whose endpoint fails or asks to slow down."""
        if outcome.verdict.blame is retries.Blame.ENDPOINT:
            self._failures_in_a_row += 1
        else:
            self._failures_in_a_row = 0
        self._stop = (
            self._failures_in_a_row >= lane_health.FAILURES_BEFORE_PAUSE
            or outcome.status_code in retries.SLOW_DOWN
            or outcome.verdict.gone
            or outcome.probe
        )

    def _close(self, lane: Lane) -> None:
        """Have rings of a full lane dropped, unless its POSTs are slow: a turn is long then."""
        if not lane.slow:
            self._runtime.full_lanes.close(self._key)

    def _reopen(self) -> None:
        """Have the lane rung again, before it is looked at for rows."""
        if self._runtime.full_lanes.reopen(self._key):
            self._runtime.bell.end_debounce(self._key[1])

    def _leave(self) -> None:
        """Once outcomes are written, hand back unsent rows, free the slot, ring if due again.

        A turn that sent nothing leaves that to the sweep, each second. So does a slow lane whose
        tenant has no further thread: the sweep rings the longest waiting lanes first.
        """
        due = False
        bulkhead, permit = self._runtime.bulkhead, self._permit
        try:
            self._settle()
            self._burst.close()
            if self._slot is not None:
                self._runtime.flusher.wait(self._ticket, SETTLE_SECONDS)
                self._reopen()
                due = self._free_slot()
        finally:
            if self._entered and self._runtime.full_lanes.leave(self._key):
                # Dropped since the look for rows.
                self._runtime.bell.end_debounce(self._key[1])
                self._runtime.bell.ring_lanes([self._key])
            yields = permit is not None and bulkhead.should_yield(permit)
            if permit is not None:
                bulkhead.release(permit)
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
            lanes.lock(session, *self._key)
            counts = {
                why: claims.hand_back(session, self._key[0], rows)
                for why, rows in self._unsent.items()
            }
            lanes.free_slot(session, *self._key, self._holder)
            due = lanes.reschedule(session, *self._key)
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


def _age(batch: Batch) -> float:
    return time.monotonic() - batch.leased_at


def _sent_alike(one: Lane, other: Lane) -> bool:
    """Return whether a delivery of both leaves with the same URL, headers and secrets."""
    return (one.sealed_target, one.sealed_secrets, one.receiver_since) == (
        other.sealed_target,
        other.sealed_secrets,
        other.receiver_since,
    )
