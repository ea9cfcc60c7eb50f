"""One worker's turn at one lane: claim, send, record, and leave so that other lanes get a turn.

No database transaction is open while a POST is in flight. Claimed but unsent rows are handed back,
also while a POST is stalled: then other workers take them.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from uuid import UUID

from app import ids, metrics
from app.core.delivery import cancelling, claims, retries
from app.core.delivery.claims import LEASE, Claimed
from app.core.delivery.lanes import concurrency, lane_health, lane_slots, lanes
from app.core.delivery.lanes.lane_slots import Slot, SlotReader
from app.core.delivery.lanes.lanes import Lane
from app.core.delivery.outcomes import Outcome
from app.core.webhooks import webhook_secrets, webhook_targets
from app.database import Tx
from app.errors import Unavailable
from app.lib.crypto.webhook_signing import Signer
from app.lib.outbound.client import DEADLINE_SECONDS
from jobs.delivery.attempt import Made, Sender
from jobs.delivery.batch import Batch
from jobs.process.bulkhead import Permit
from jobs.process.runtime import Runtime
from jobs.process.shutdown import shutting_down

TURN_SECONDS = 5.0
# A change to a webhook applies within a second and the attempt in flight.
RELOAD_SECONDS = 0.8
# An attempt, and the write of its outcome, must fit into the rest of the lease.
LEASE_NEEDED_SECONDS = DEADLINE_SECONDS + 2.0
SETTLE_SECONDS = 5.0
PASSED_ON_AT_MOST = 6
# Seconds between tries to free the slot (backoff); each try may wait two seconds for a lock.
WAITS_FOR_THE_DATABASE = (0.1, 0.2, 0.4, 0.8)


class LaneRun:
    """One turn; `run` does it all."""

    def __init__(
        self, runtime: Runtime, tenant_id: UUID, webhook_id: UUID, *, passed_on: int = 0
    ) -> None:
        """Prepare a turn; `passed_on` counts workers that had no permit and rang for another."""
        self._runtime = runtime
        self._passed_on = passed_on
        self._key = (tenant_id, webhook_id)
        self._holder = ids.new()
        self._began = time.monotonic()
        self._permit: Permit | None = None
        self._slot: Slot | None = None
        self._result = "nothing_due"
        self._yields = False
        self._more_to_cancel = False
        self._ticket = 0
        self._sent = 0
        self._failures_in_a_row = 0
        self._stop = False
        self._burst = runtime.outbound.burst(webhook_id)
        self._unsettled: Made | None = None

    def run(self) -> None:
        """Send due rows until the turn is over, the lane is empty, or the lane must rest."""
        if self._runtime.bulkhead.turns_away(*self._key):
            # Many slow lanes wait for few permits: turning a lane away costs no query.
            self._runtime.tally.add(metrics.TURNS, "no_room")
            self._runtime.bell.debounce(self._key[1])
            return
        # Before the claim: a row that is committed from here on must ring again.
        self._runtime.bell.end_debounce(self._key[1])
        try:
            batch = self._claim(first=True)
            while batch is not None and batch.waits:
                if batch.ring:
                    self._runtime.bell.ring_lanes([self._key], ignore_debounce=True)
                self._send(batch)
                # A short batch had all due rows; `_leave` finds rows that came since.
                if self._stop or not batch.full or self._turn_is_over():
                    break
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
            slot = self._enter(session, lane) if first else self._stay(session, lane)
            if slot is None:
                return None
            # Raises if the master key is missing here: the rollback then frees the slot.
            master_keys = self._runtime.settings.master_keys
            signer = Signer(
                webhook_secrets.open_secrets(master_keys, lane.sealed_secrets, *self._key, lane.now)
            )
            target = webhook_targets.open_sealed(master_keys, lane.sealed_target, *self._key)
            limit = 1 if lane.probes else concurrency.claim_size(lane.latency_ms)
            claim = claims.claim(session, lane, limit, self._holder)
            if lane.pause_level > 0 and claim():
                claims.hold_for_probe(session, lane, lane_health.PROBE_TIME)
        self._slot = slot()
        if self._slot is None:
            self._result = "no_slot"
            self._yields = lane.slow
            return None
        claimed = claim()
        self._count(claimed)
        full = len(claimed) == limit and not lane.probes
        ring = full and self._slot.held < lane.allowed
        turn = {"slot": self._slot.number, "passed_on": self._passed_on}
        sender = Sender(self._runtime, self._burst, signer, target, lane, loaded_at, turn)
        return Batch(deque(claimed), full=full, ring=ring, sender=sender, leased_at=began)

    def _count(self, claimed: Sequence[Claimed]) -> None:
        tally = self._runtime.tally
        tally.add(metrics.CLAIMS, count=len(claimed))
        tally.add(metrics.CLAIMS_LOST, count=sum(each.taken_over for each in claimed))

    def _enter(self, session: Tx, lane: Lane) -> SlotReader | None:
        """Take a permit and start to take a slot; its result arrives with the claim's."""
        self._permit = self._runtime.bulkhead.acquire(*self._key, lane.kind)
        if self._permit is None:
            self._result = "no_room"
            self._yields = lane.slow
            if lane.slow:
                self._runtime.bulkhead.turn_away(*self._key)
            return None
        return lane_slots.take(session, lane, self._holder)

    def _stay(self, session: Tx, lane: Lane) -> SlotReader | None:
        """Renew the slot and await the result: the claim would accept a slot beyond the limit."""
        if lane.paused:
            return None
        slot = lane_slots.keep(session, lane, self._holder)()
        return None if slot is None else lambda: slot

    def _send(self, batch: Batch) -> None:
        loaded_at = batch.leased_at
        while batch.waits:
            # Checked in this order: the reload may take long, while the lease runs down.
            if why := self._why_not_start(batch, loaded_at):
                self._stop = True
                self._give_back(batch, why)
                return
            if time.monotonic() - loaded_at > RELOAD_SECONDS:
                loaded_at = time.monotonic()
            if claimed := batch.take():
                self._attempt(batch, claimed)

    def _why_not_start(self, batch: Batch, loaded_at: float) -> str | None:
        """Return the reason not to start the next attempt, or None."""
        if not self._unchanged_since(loaded_at, batch.sender.lane):
            return "lane_changed"
        if self._stop:
            return "lane_failed"
        if shutting_down():
            return "shutdown"
        if LEASE.total_seconds() - (time.monotonic() - batch.leased_at) < LEASE_NEEDED_SECONDS:
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
                    # While this turn probes, its own claim has paused the lane for others.
                    and (lane.probes or not now.paused)
                    and (lane.held or not now.held)
                    and _sent_alike(now, lane)
                    and lane_slots.may_keep(session, now, self._holder)
                )
        except Unavailable:
            return False

    def _attempt(self, batch: Batch, claimed: Claimed) -> None:
        self._settle()
        with self._watched(batch):
            turned_slow = partial(self._turned_slow, batch.sender.lane)
            made = batch.sender.attempt(claimed, turned_slow)
        self._unsettled = made
        self._sent += 1
        self._note(made.outcome)

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
            rows = [made.claimed]
            self._ticket = self._runtime.flusher.give_back(self._key, rows, "answer_in_doubt")

    def _watched(self, batch: Batch) -> AbstractContextManager[None]:
        """Hand back the rows behind a POST if it stalls."""
        if not batch.waits:
            return nullcontext()
        return self._runtime.watchdog.watch(batch.stalled_seconds, partial(self._let_others, batch))

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

    def _turned_slow(self, lane: Lane) -> None:
        if self._permit is not None:
            self._runtime.bulkhead.note_hanging(self._permit)
        if not lane.slow:
            self._runtime.flusher.mark_slow(*self._key)

    def _give_back(self, batch: Batch, why: str) -> None:
        if rest := batch.take_rest():
            self._ticket = self._runtime.flusher.give_back(self._key, rest, why)

    def _let_others(self, batch: Batch) -> None:
        """Hand back the rows behind a stalled POST, and ring for them."""
        if rest := batch.take_rest():
            self._runtime.flusher.give_back(self._key, rest, "stalled", stalled=True)

    def _leave(self) -> None:
        """Free the slot once the outcomes are written, and ring if the lane is due again."""
        due = False
        bulkhead = self._runtime.bulkhead
        try:
            self._settle()
            self._burst.close()
            if self._slot is not None:
                self._runtime.flusher.wait(self._ticket, SETTLE_SECONDS)
                self._yields = self._permit is not None and bulkhead.should_yield(self._permit)
                due = self._free_slot()
        finally:
            if self._permit is not None:
                bulkhead.release(self._permit)
        self._ring_again(due=due)

    def _ring_again(self, *, due: bool) -> None:
        """Ring for the rows left; a turn that sent nothing leaves that to the sweep, each second.

        So does a slow lane that yields or got no permit: the sweep rings the longest waiting lanes
        first, and rings for new rows on the lane are debounced meanwhile.
        A ring that met a full process is passed on, as another may have room: by the sweep alone
        it could meet the same process again and again. After a few times all are full.
        """
        bell = self._runtime.bell
        if self._yields:
            bell.debounce(self._key[1])
        elif (due and self._sent) or self._more_to_cancel:
            bell.ring_lanes([self._key], ignore_debounce=True)
        elif self._result == "no_room" and self._passed_on < PASSED_ON_AT_MOST:
            self._runtime.tally.add(metrics.PASSED_ON)
            bell.ring("deliver", (*self._key, str(self._passed_on + 1)))

    def _free_slot(self) -> bool:
        """Free the slot; return whether the lane is due. Retries while the database is unavailable.

        Raises `Unavailable` in the end; the slot is free when its lease ends.
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
            lane_slots.free(session, *self._key, self._holder)
            return lanes.reschedule(session, *self._key, yields=self._yields)


def _sent_alike(one: Lane, other: Lane) -> bool:
    """Return whether a delivery of both leaves with the same URL, headers and secrets."""
    return (one.sealed_target, one.sealed_secrets, one.receiver_since) == (
        other.sealed_target,
        other.sealed_secrets,
        other.receiver_since,
    )
