"""The log line of an attempt, with every decision about it, and its metrics."""

from datetime import datetime

import structlog

from app import ids, metrics
from app.clock import rfc3339
from app.core.delivery.claims import Claimed
from app.core.delivery.lanes.lanes import Lane
from app.core.delivery.outcomes import Outcome
from app.lib.metric_registry import Tally
from app.lib.outbound.client import Answer

_log = structlog.get_logger("attempt")


def write(
    lane: Lane, claimed: Claimed, answer: Answer | None, outcome: Outcome, **turn: int
) -> None:
    """Write the log line of an attempt: delivery, turn, lane, outcome and next attempt.

    It has no URL, header or body: a URL may hold a secret, and a receiver may answer with one.
    """
    verdict = outcome.verdict
    wait = verdict.row_wait
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
        **turn,
        allowed=lane.allowed,
        slow=lane.slow,
        paused=lane.paused,
        probe=outcome.probe,
        outcome=outcome.outcome,
        status_code=outcome.status_code,
        blame=str(verdict.blame),
        status=verdict.status,
        next_attempt_at=_rfc3339(outcome.ended_at + wait if wait else None),
        retry_in=wait.total_seconds() if wait else None,
        retry_after=verdict.lane_wait.total_seconds() if verdict.lane_wait else None,
        started_at=_rfc3339(outcome.started_at),
        **_milliseconds(outcome),
        reconnected=answer is not None and answer.reconnected,
        error=outcome.error,
    )


def count(tally: Tally, claimed: Claimed, answer: Answer | None, outcome: Outcome) -> None:
    """Count an attempt, its duration, and whether it may be a duplicate for the receiver."""
    code = f"{outcome.status_code // 100}xx" if outcome.status_code else "none"
    tally.add(metrics.ATTEMPTS, outcome.kind, outcome.outcome, code)
    if answer is None:
        return
    tally.observe(metrics.ATTEMPT_SECONDS, answer.timings.total / 1000, outcome.outcome)
    _count_phases(tally, answer)
    if claimed.claims_lost:
        tally.add(metrics.DUPLICATES, "lost_claim")
    if answer.reconnected:
        tally.add(metrics.DUPLICATES, "reconnected")
    if outcome.number == 1 and answer.status is not None:
        waited = (outcome.started_at - claimed.created_at).total_seconds()
        tally.observe(metrics.DELAY_SECONDS, waited + _until_sent(answer), outcome.kind)


def write_stray(lane: Lane, claimed: Claimed) -> None:
    """Write the log line of an attempt whose answer may be another request's."""
    _log.warning(
        "answer_in_doubt",
        tenant_id=ids.text("ten", lane.tenant_id),
        webhook_id=ids.text("whk", lane.webhook_id),
        delivery_id=ids.text("dlv", claimed.id),
        event_id=ids.text("evt", claimed.event_id),
        claim_no=claimed.claim_no,
    )


def count_stray(tally: Tally) -> None:
    """Count a delivery that is sent again because its answer may be another request's."""
    tally.add(metrics.DUPLICATES, "answer_in_doubt")


def _count_phases(tally: Tally, answer: Answer) -> None:
    timings = answer.timings
    for phase, took in (
        ("dns", timings.dns),
        ("connect", timings.connect),
        ("tls", timings.tls),
        ("first_byte", timings.first_byte),
    ):
        if took is not None:
            tally.observe(metrics.PHASE_SECONDS, took / 1000, phase)


def _until_sent(answer: Answer) -> float:
    """Return the seconds before the first byte of the request could be sent."""
    timings = answer.timings
    return ((timings.dns or 0) + (timings.connect or 0) + (timings.tls or 0)) / 1000


def _milliseconds(outcome: Outcome) -> dict[str, float | None]:
    measured = {
        "dns_ms": outcome.dns_ms,
        "connect_ms": outcome.connect_ms,
        "tls_ms": outcome.tls_ms,
        "first_byte_ms": outcome.first_byte_ms,
        "total_ms": outcome.total_ms,
    }
    return {name: None if took is None else round(took, 2) for name, took in measured.items()}


def _rfc3339(moment: datetime | None) -> str | None:
    return None if moment is None else rfc3339(moment)
