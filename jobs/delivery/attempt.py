"""An attempt at a delivery: send the request, and judge the answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from app.core.delivery import claims, request_headers, retries
from app.core.delivery.claims import Claimed
from app.core.delivery.lanes.lanes import Lane
from app.core.delivery.outcomes import Outcome
from app.core.webhooks.webhook_secrets import HIDDEN, Target
from app.lib import canonical_json
from app.lib.crypto.webhook_signing import Signer
from app.lib.outbound.client import Answer, Burst
from jobs.delivery import attempt_log
from jobs.process.runtime import Runtime

_LOST = {
    "outcome": "worker_lost",
    "error": "five workers took this delivery and none came back",
}


@dataclass(frozen=True)
class Sender:
    """Sends the rows of one claim, with the lane, its secrets and target as of the claim.

    `burst` has the turn's connection. `loaded_at` is the monotonic clock's reading at the lane's
    `now`; `slot` is for the log alone.
    """

    runtime: Runtime
    burst: Burst
    signer: Signer
    target: Target
    lane: Lane
    loaded_at: float
    slot: int

    def attempt(self, claimed: Claimed) -> "Made":
        """Make one attempt.

        A delivery with five claims lost in a row is not sent: it fails as `worker_lost`.
        """
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
        counts = answer is None or sender.burst.settle()
        if counts:
            attempt_log.count(sender.runtime.tally, claimed, answer, self.outcome)
            attempt_log.write(sender.lane, claimed, answer, self.outcome, slot=sender.slot)
        else:
            attempt_log.note_stray(sender.runtime.tally, sender.lane, claimed)
        return counts


def _seen(answer: Answer, secrets: Sequence[str]) -> dict[str, Any]:
    """Return the fields of an outcome that come from the answer.

    Receivers like to repeat a request in their errors: of what is secret they show `***`.
    """
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
