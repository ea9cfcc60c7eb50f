"""An attempt at a delivery: send the request, and judge the answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from app import ids, metrics
from app.clock import rfc3339
from app.core.delivery import claims, request_headers, retries
from app.core.delivery.claims import Claimed
from app.core.delivery.lanes.lanes import Lane
from app.core.delivery.outcomes import Outcome
from app.core.webhooks.webhook_secrets import HIDDEN, Target
from app.lib import canonical_json
from app.lib.crypto.webhook_signing import Signer
from app.lib.metric_registry import Tally
from app.lib.outbound.client import Answer, Burst
from jobs.process.runtime import Runtime

_log = structlog.get_logger("attempt")

_PHASES = ("dns", "connect", "tls", "first_byte")


def _write(
    lane: Lane, claimed: Claimed, answer: Answer | None, outcome: Outcome, *, slot: int
) -> None:
    """Write the log line of an attempt: delivery, slot, lane, outcome and next attempt.

    It has no URL, header or body: a URL may hold a secret, and a receiver may answer with one.
    """
    verdict = outcome.verdict
    wait = verdict.row_wait
    took = {f"{phase}_ms": getattr(outcome, f"{phase}_ms") for phase in (*_PHASES, "total")}
    _log.info(
        "attempt",
        tenant_id=ids.text("ten", outcome.tenant_id),
        webhook_id=ids.text("whk", outcome.webhook_id),
        delivery_id=ids.text("dlv", outcome.delivery_id),
        event_id=ids.text("evt", claimed.event_id),
        kind=outcome.kind,
        sequence=claimed.sequence,
        attempt=outcome.number,
        claim_no=outcome.claim_no,
        claims_lost=claimed.claims_lost,
        slot=slot,
        allowed=lane.allowed,
        slow=lane.slow,
        paused=lane.paused,
        probe=outcome.probe,
        outcome=outcome.outcome,
        status_code=outcome.status_code,
        blame=str(verdict.blame),
        status=verdict.status,
        next_attempt_at=rfc3339(outcome.ended_at + wait) if wait else None,
        retry_in=wait.total_seconds() if wait else None,
        retry_after=verdict.lane_wait.total_seconds() if verdict.lane_wait else None,
        started_at=rfc3339(outcome.started_at),
        **{name: None if ms is None else round(ms, 2) for name, ms in took.items()},
        reconnected=answer is not None and answer.reconnected,
        error=outcome.error,
    )


def _count(tally: Tally, claimed: Claimed, answer: Answer | None, outcome: Outcome) -> None:
    """Count an attempt, its duration, and whether it may be a duplicate for the receiver."""
    code = f"{outcome.status_code // 100}xx" if outcome.status_code else "none"
    tally.add(metrics.ATTEMPTS, outcome.kind, outcome.outcome, code)
    if answer is None:
        return
    timings = answer.timings
    tally.observe(metrics.ATTEMPT_SECONDS, timings.total / 1000, outcome.outcome)
    for phase in _PHASES:
        if (took := getattr(timings, phase)) is not None:
            tally.observe(metrics.PHASE_SECONDS, took / 1000, phase)
    if claimed.claims_lost:
        tally.add(metrics.DUPLICATES, "lost_claim")
    if answer.reconnected:
        tally.add(metrics.DUPLICATES, "reconnected")
    if outcome.number == 1 and answer.status is not None:
        # Until the first byte of the request could be sent.
        connected = (timings.dns or 0) + (timings.connect or 0) + (timings.tls or 0)
        waited = (outcome.started_at - claimed.created_at).total_seconds()
        tally.observe(metrics.DELAY_SECONDS, waited + connected / 1000, outcome.kind)


_LOST = {
    "outcome": "worker_lost",
    "error": "five workers took this delivery and none came back",
}


@dataclass(frozen=True)
class Sender:
    """Sends the rows of one claim, with the lane, its secrets and target as of the claim.

    `loaded_at` is the monotonic clock's reading at the lane's `now`; `slot` is for the log alone.
    """

    runtime: Runtime
    burst: Burst
    signer: Signer
    target: Target
    lane: Lane
    loaded_at: float
    slot: int

    def attempt(self, claimed: Claimed) -> "Made":
        """Make one attempt; after five claims lost in a row it fails unsent (`worker_lost`)."""
        started = time.monotonic()
        answer = None
        if claimed.claims_lost < claims.CLAIMS_LOST_AT_MOST:
            headers = request_headers.of(
                self.signer,
                claimed.event_id,
                claimed.payload,
                self._moment(started),
                attempt=claimed.attempt,
                sequence=claimed.sequence,
                lane=self.lane.number,
                epoch=self.lane.epoch,
                own=self.target.headers,
            )
            answer = self.burst.send(self.target.url, claimed.payload, headers)
        return Made(self, claimed, answer, self._outcome(claimed, answer, started))

    def _outcome(self, claimed: Claimed, answer: Answer | None, started: float) -> Outcome:
        lane = self.lane
        ended_at = self._moment(time.monotonic())
        verdict = retries.judge(
            answer.status if answer else None,
            answer.retry_after if answer else None,
            attempt=claimed.scheduled_attempt,
            schedule=self.runtime.settings.retry_schedule,
            now=ended_at,
            age=ended_at - claimed.created_at,
            ours=answer is None,
        )
        return Outcome(
            tenant_id=lane.tenant_id,
            webhook_id=lane.webhook_id,
            delivery_id=claimed.id,
            receiver_since=lane.receiver_since,
            kind=claimed.kind,
            claim_no=claimed.claim_no,
            number=claimed.attempt,
            probe=lane.pause_level > 0,
            verdict=verdict,
            started_at=self._moment(started),
            ended_at=ended_at,
            **(_LOST if answer is None else _seen(answer, self.target.secrets)),
        )

    def _moment(self, monotonic: float) -> datetime:
        """Return the database's time at a reading of `time.monotonic()`, in seconds."""
        return self.lane.now + timedelta(seconds=monotonic - self.loaded_at)


@dataclass(frozen=True)
class Made:
    """An attempt that was made; until `settle` its answer may be another request's."""

    sender: Sender
    claimed: Claimed
    answer: Answer | None
    outcome: Outcome

    def settle(self) -> bool:
        """Return whether the outcome counts, and write its log line; to be called once.

        If it does not, the delivery is to be sent again: nobody knows what it was answered.
        """
        sender, claimed, answer = self.sender, self.claimed, self.answer
        if answer is not None and not sender.burst.settle():
            sender.runtime.tally.add(metrics.DUPLICATES, "answer_in_doubt")
            _log.warning(
                "answer_in_doubt",
                tenant_id=ids.text("ten", sender.lane.tenant_id),
                webhook_id=ids.text("whk", sender.lane.webhook_id),
                delivery_id=ids.text("dlv", claimed.id),
                event_id=ids.text("evt", claimed.event_id),
                claim_no=claimed.claim_no,
            )
            return False
        _count(sender.runtime.tally, claimed, answer, self.outcome)
        _write(sender.lane, claimed, self.answer, self.outcome, slot=sender.slot)
        return True


def _seen(answer: Answer, secrets: Sequence[str]) -> dict[str, Any]:
    """Return the outcome's fields from an answer, with `***` for secrets that it repeats."""
    outcome = "refused" if answer.failure is None else str(answer.failure)
    seen = {
        "outcome": "succeeded" if answer.succeeded else outcome,
        "dns_ms": answer.timings.dns,
        "connect_ms": answer.timings.connect,
        "tls_ms": answer.timings.tls,
        "first_byte_ms": answer.timings.first_byte,
        "total_ms": answer.timings.total,
        "error": answer.error,
    }
    if answer.status is None:
        return seen
    headers, body = [list(pair) for pair in answer.headers], answer.body
    for secret in secrets:
        headers = [[text.replace(secret, HIDDEN) for text in pair] for pair in headers]
        body = body.replace(secret.encode(), HIDDEN.encode())
    return seen | {
        "status_code": answer.status,
        "response_headers": canonical_json.dumps(headers).decode(),
        "response_body": body,
    }
