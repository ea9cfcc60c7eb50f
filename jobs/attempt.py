"""One attempt at a delivery: what is sent, what the answer means, and the line that says it all."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from app import ids
from app.core.delivery import deliveries, retries
from app.core.delivery.deliveries import Claimed, Moment
from app.core.delivery.lanes import Lane
from app.core.delivery.outcomes import Outcome
from app.lib import canonical_json
from app.lib.outbound import Answer, Outbound
from app.lib.webhook_signing import Signer
from app.settings import VERSION

_log = structlog.get_logger(__name__)

_USER_AGENT = f"record-service/{VERSION}"
_LOST = {
    "outcome": "worker_lost",
    "error": "five workers took this delivery and none came back",
}


@dataclass(frozen=True)
class Sender:
    """Sends what was claimed together: to the lane as it was then, signed with its secrets."""

    outbound: Outbound
    schedule: Sequence[float]
    lane: Lane
    signer: Signer
    moment: Moment

    def attempt(self, claimed: Claimed, on_slow: Callable[[], None]) -> Outcome:
        """Make one attempt and return what became of it; `on_slow` is called once, after a second.

        What took five workers with it is not sent again: it is given up as `worker_lost`.
        """
        started = time.monotonic()
        answer = None
        if claimed.claims_lost < deliveries.CLAIMS_LOST_AT_MOST:
            headers = self._headers(claimed, started)
            answer = self.outbound.send(self.lane.url, claimed.payload, headers, on_slow=on_slow)
        outcome = self._outcome(claimed, answer, started)
        _note(outcome, claimed)
        return outcome

    def _headers(self, claimed: Claimed, started: float) -> dict[str, str]:
        timestamp = int(self.moment.at(started).timestamp())
        headers = self.signer.headers(ids.text("evt", claimed.event_id), timestamp, claimed.payload)
        headers["content-type"] = "application/json"
        headers["user-agent"] = _USER_AGENT
        headers["x-service-attempt"] = str(claimed.attempt)
        if claimed.sequence is not None:
            headers["x-service-sequence"] = str(claimed.sequence)
        return headers

    def _outcome(self, claimed: Claimed, answer: Answer | None, started: float) -> Outcome:
        ended_at = self.moment.at(time.monotonic())
        verdict = retries.judge(
            answer.status if answer else None,
            answer.retry_after if answer else None,
            attempt=claimed.attempt,
            schedule=self.schedule,
            now=ended_at,
            ours=answer is None,
        )
        return Outcome(
            tenant_id=self.lane.tenant_id,
            webhook_id=self.lane.webhook_id,
            delivery_id=claimed.id,
            url=self.lane.url,
            kind=claimed.kind,
            claim_no=claimed.claim_no,
            number=claimed.attempt,
            probe=self.lane.pause_level > 0,
            verdict=verdict,
            started_at=self.moment.at(started),
            ended_at=ended_at,
            **(_LOST if answer is None else _seen(answer)),
        )


def _seen(answer: Answer) -> dict[str, Any]:
    """Return what an outcome says of the answer."""
    seen = {
        "outcome": _name(answer),
        "dns_ms": answer.timings.dns,
        "connect_ms": answer.timings.connect,
        "tls_ms": answer.timings.tls,
        "first_byte_ms": answer.timings.first_byte,
        "total_ms": answer.timings.total,
        "error": answer.error,
    }
    if answer.status is None:
        return seen
    headers = canonical_json.dumps([list(pair) for pair in answer.headers]).decode()
    return seen | {
        "status_code": answer.status,
        "response_headers": headers,
        "response_body": answer.body,
    }


def _name(answer: Answer) -> str:
    if answer.succeeded:
        return "succeeded"
    return "refused" if answer.failure is None else str(answer.failure)


def _note(outcome: Outcome, claimed: Claimed) -> None:
    """Write the one line that says all about an attempt."""
    verdict = outcome.verdict
    _log.info(
        "attempt",
        tenant_id=outcome.tenant_id.hex,
        webhook_id=outcome.webhook_id.hex,
        delivery_id=outcome.delivery_id.hex,
        event_id=claimed.event_id.hex,
        kind=outcome.kind,
        sequence=claimed.sequence,
        attempt=outcome.number,
        claim=outcome.claim_no,
        probe=outcome.probe,
        outcome=outcome.outcome,
        status_code=outcome.status_code,
        status=verdict.status,
        blame=str(verdict.blame),
        retry_in=verdict.wait.total_seconds() if verdict.wait else None,
        total_ms=outcome.total_ms,
        error=outcome.error,
    )
