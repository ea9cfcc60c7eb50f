"""The log line of an attempt, with every decision about it, and its metrics."""

import structlog

from app import ids, metrics
from app.clock import rfc3339
from app.core.delivery.claims import Claimed
from app.core.delivery.lanes.lanes import Lane
from app.core.delivery.outcomes import Outcome
from app.lib.metric_registry import Tally
from app.lib.outbound.client import Answer

_log = structlog.get_logger("attempt")

_PHASES = ("dns", "connect", "tls", "first_byte")


def write(
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


def count(tally: Tally, claimed: Claimed, answer: Answer | None, outcome: Outcome) -> None:
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


def note_stray(tally: Tally, lane: Lane, claimed: Claimed) -> None:
    """Log and count a delivery that is sent again: its answer may be another request's."""
    tally.add(metrics.DUPLICATES, "answer_in_doubt")
    _log.warning(
        "answer_in_doubt",
        tenant_id=ids.text("ten", lane.tenant_id),
        webhook_id=ids.text("whk", lane.webhook_id),
        delivery_id=ids.text("dlv", claimed.id),
        event_id=ids.text("evt", claimed.event_id),
        claim_no=claimed.claim_no,
    )
