"""Records the outcomes of attempts: many in one transaction, each at most once.

Deliveries, history, hours, totals and lane health change together. Lanes are locked first, in one
order, so two workers that record at once do not deadlock.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.core.delivery import cancelling, hours, retries
from app.core.delivery.cancelling import Reason
from app.core.delivery.events import PRIORITY_LIVE, PRIORITY_URGENT
from app.core.delivery.lanes import lane_changes, lane_health, lanes
from app.core.delivery.lanes.lane_changes import LaneChange
from app.core.delivery.lanes.lane_health import Health, only_failed_since, refusing_since
from app.core.delivery.lanes.lanes import Lane, LaneKey
from app.core.delivery.retries import Attempted, Blame
from app.database import cursor

# A delivery and the claim under which it was sent: after a takeover one batch may have both claims.
_Claim = tuple[UUID, int]


@dataclass(frozen=True, kw_only=True)
class Outcome(Attempted):
    """One finished attempt: the delivery and claim, the duration of its phases, the response."""

    tenant_id: UUID
    webhook_id: UUID
    delivery_id: UUID
    receiver_since: datetime | None
    kind: str
    claim_no: int
    outcome: str
    dns_ms: float | None = None
    connect_ms: float | None = None
    tls_ms: float | None = None
    first_byte_ms: float | None = None
    response_headers: str | None = None
    response_body: bytes | None = None
    error: str | None = None


@dataclass
class Recorded:
    """The result of recording outcomes.

    `fenced` are the outcomes whose claim was taken over; `ended` counts ended deliveries by kind
    and status; `pauses` counts pauses that began or grew; `to_follow` has the reasons to disable a
    webhook, or to warn of it when it has failed for half of the time until then; `widened` lists
    lanes whose concurrency grew.
    """

    fenced: list[Outcome]
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    pauses: int = 0
    to_follow: dict[LaneKey, Reason] = field(default_factory=dict)
    widened: list[LaneKey] = field(default_factory=list)


def record(
    session: Session,
    outcomes: Sequence[Outcome],
    *,
    first_pause: timedelta,
    disable_after: timedelta,
) -> Recorded:
    """Write outcomes of attempts, in a session that sees all tenants.

    An outcome whose claim was taken over changes nothing. That of a delivery cancelled meanwhile is
    kept as history, and one that arrived is succeeded.
    """
    by_lane: dict[LaneKey, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_lane[outcome.tenant_id, outcome.webhook_id].append(outcome)
    locked = lanes.load_each(session, sorted(by_lane))
    done = _write(session, outcomes, locked)
    recorded = Recorded([each for each in outcomes if _claim(each) not in done])
    changes = []
    for key, state in locked.items():
        mine = [(each, done[_claim(each)]) for each in by_lane[key] if _claim(each) in done]
        # Answers from an earlier URL say nothing about this one.
        telling = [each for each, _ in mine if _binds(each, state)]
        retried_elsewhere = any(
            row.next_attempt_at and not _binds(each, state) for each, row in mine
        )
        change = _fold(state, telling, first_pause, recover=retried_elsewhere)
        for each, row in mine:
            if row.next_attempt_at is not None:
                change.wake_up(row.next_attempt_at)
            elif row.status in ("succeeded", "failed"):
                change.totals[f"{each.kind}s_{row.status}"] += 1
                change.totals[f"{each.kind}s_open"] -= not row.late
                recorded.ended[each.kind, row.status] += 1
        changes.append(change)
        if change.learned.concurrency > state.learned.concurrency:
            recorded.widened.append(key)
        recorded.pauses += change.health.pause_level > state.health.pause_level
        if reason := _judged(state, change.health, telling, disable_after):
            recorded.to_follow[key] = reason
    lane_changes.update(session, changes)
    return recorded


_OUTCOME = """
outcome AS (
    SELECT * FROM unnest(
        %(tenant_id)b::uuid[], %(attempt_id)b::uuid[], %(delivery_id)b::uuid[],
        %(claim_no)b::bigint[], %(number)b::smallint[], %(status)b::text[],
        %(wait)b::interval[], %(outcome)b::text[], %(started_at)b::timestamptz[],
        %(ended_at)b::timestamptz[], %(dns_ms)b::real[], %(connect_ms)b::real[],
        %(tls_ms)b::real[], %(first_byte_ms)b::real[], %(total_ms)b::real[],
        %(status_code)b::smallint[], %(response_headers)b::text[], %(response_body)b::bytea[],
        %(error)b::text[], %(asked_until)b::timestamptz[], %(failure)b::bigint[])
    AS o (tenant_id, attempt_id, delivery_id, claim_no, number, status, wait, outcome, started_at,
          ended_at, dns_ms, connect_ms, tls_ms, first_byte_ms, total_ms, status_code,
          response_headers, response_body, error, asked_until, failure)
)
"""
# What came of an attempt: columns of `outcome`, `ended_deliveries` and `earlier_attempts`.
_RESULT = (
    *("dns_ms", "connect_ms", "tls_ms", "first_byte_ms", "total_ms", "status_code"),
    *("response_headers", "response_body", "error"),
)
_ATTEMPT = ", ".join(_RESULT)
_OF_OUTCOME = ", ".join(f"o.{name}" for name in _RESULT)
_MINE = """
d.tenant_id = o.tenant_id AND d.id = o.delivery_id AND d.claim_no = o.claim_no
AND d.attempts = o.number - 1
"""
# A delivery is deleted where it was open and inserted once where history is, with this attempt. One
# that is tried again leaves the attempt behind. Open ones are found one by one and written by their
# place, for their lanes are locked: no plan can then read those that were over long ago.
_WRITE = f"""
WITH {_OUTCOME}, mine AS MATERIALIZED (
    SELECT o.*, open.at FROM outcome AS o CROSS JOIN LATERAL (
        SELECT d.ctid AS at FROM open_deliveries AS d
         WHERE {_MINE} AND d.lease_until IS NOT NULL ORDER BY d.id LIMIT 1) AS open
), gone AS (
    DELETE FROM open_deliveries AS d USING mine AS o
     WHERE d.ctid = o.at AND o.wait IS NULL
    RETURNING d.tenant_id, d.id, d.webhook_id, d.event_id, d.created_at, d.sequence, d.priority,
              d.claim_no, d.kind, d.event_type, d.replay_of, d.job_id, o.number, o.status,
              o.started_at, o.failure, o.outcome, {_OF_OUTCOME}
), again AS (
    UPDATE open_deliveries AS d
       SET attempts = o.number, claims_lost = 0, attempted_at = o.started_at,
           asked_until = o.asked_until, status_code = o.status_code, failure = o.failure,
           outcome = CASE WHEN o.failure IS NOT NULL THEN o.outcome END, status = o.status,
           lease_until = NULL, fresh = false,
           feed_sequence = CASE WHEN d.kind = 'event' THEN d.sequence END,
           priority = CASE WHEN d.priority = {PRIORITY_URGENT} THEN {PRIORITY_LIVE}
                           ELSE d.priority END,
           next_attempt_at = greatest(o.ended_at + o.wait, clock_timestamp())
      FROM mine AS o
     WHERE d.ctid = o.at AND o.wait IS NOT NULL
    RETURNING d.tenant_id, d.webhook_id, d.id, d.claim_no, d.status, d.next_attempt_at, o.total_ms
), ended AS (
    INSERT INTO ended_deliveries
           (tenant_id, id, webhook_id, event_id, created_at, finished_at, attempted_at, sequence,
            priority, attempts, kind, status, event_type, replay_of, job_id, failure, outcome,
            {_ATTEMPT})
    SELECT tenant_id, id, webhook_id, event_id, created_at, statement_timestamp(), started_at,
           sequence, greatest(priority, {PRIORITY_LIVE}), number, kind, status, event_type,
           replay_of, job_id, failure, CASE WHEN failure IS NOT NULL THEN outcome END, {_ATTEMPT}
      FROM gone
), done AS (
    SELECT tenant_id, webhook_id, id, claim_no, status, NULL::timestamptz AS next_attempt_at,
           total_ms FROM gone
     UNION ALL
    SELECT * FROM again
), {hours.add("done")}, history AS (
    INSERT INTO earlier_attempts
           (tenant_id, id, delivery_id, number, outcome, started_at, {_ATTEMPT})
    SELECT o.tenant_id, o.attempt_id, o.delivery_id, o.number, o.outcome, o.started_at,
           {_OF_OUTCOME}
      FROM mine AS o JOIN again ON again.id = o.delivery_id AND again.claim_no = o.claim_no
)
SELECT id, claim_no, status, next_attempt_at FROM done
"""
# Few outcomes are of a delivery that was cancelled while its attempt was under way.
_WRITE_LATE = f"""
WITH {_OUTCOME}, done AS (
    UPDATE ended_deliveries AS d
       SET claim_no = NULL, attempts = o.number, attempted_at = o.started_at, failure = o.failure,
           outcome = CASE WHEN o.failure IS NOT NULL THEN o.outcome END,
           ({_ATTEMPT}) = ROW ({_OF_OUTCOME})
      FROM outcome AS o
     WHERE {_MINE} AND d.status = 'cancelled' AND d.id = ANY (%(delivery_id)b::uuid[])
    RETURNING d.tenant_id, d.webhook_id, d.id, o.claim_no, d.status,
              NULL::timestamptz AS next_attempt_at, o.total_ms
), {hours.add("done")}
SELECT id, claim_no, status, next_attempt_at, true AS late FROM done
"""

_COLUMNS = (
    *("tenant_id", "delivery_id", "claim_no", "number", "outcome", "started_at", "ended_at"),
    *_RESULT,
)


@dataclass(frozen=True)
class _Done:
    id: UUID
    claim_no: int
    status: str
    next_attempt_at: datetime | None
    # It was cancelled before.
    late: bool = False


def _write(
    session: Session, outcomes: Sequence[Outcome], locked: Mapping[LaneKey, Lane]
) -> dict[_Claim, _Done]:
    columns = _columns(outcomes, locked)
    written = cursor(session, class_row(_Done)).execute(_WRITE, columns).fetchall()
    done = {(each.id, each.claim_no): each for each in written}
    late = [each for each in outcomes if _claim(each) not in done]
    if late:
        columns = _columns(late, locked)
        # Planned for these ids, it opens their partitions alone.
        found = cursor(session, class_row(_Done)).execute(_WRITE_LATE, columns, prepare=False)
        done |= {(each.id, each.claim_no): each for each in found.fetchall()}
        arrived = [
            each for each in late if each.verdict.blame is Blame.NOBODY and _claim(each) in done
        ]
        if arrived:
            # It was cancelled meanwhile all the same; few ever are.
            cancelling.undo(session, [(each.tenant_id, each.delivery_id) for each in arrived])
            for each in arrived:
                done[_claim(each)] = replace(done[_claim(each)], status="succeeded")
    # Events whose own delivery failed, or which a replay delivered; most batches have none.
    ended: dict[UUID, list[UUID]] = defaultdict(list)
    for each in outcomes:
        row = done.get(_claim(each))
        state = (each.kind, row.status) if row and not row.late else None
        if state in (("event", "failed"), ("replay", "succeeded")):
            ended[each.tenant_id].append(each.delivery_id)
    for tenant_id, deliveries in ended.items():
        cancelling.count_arrived(session, tenant_id, deliveries)
    return done


def _columns(
    outcomes: Sequence[Outcome], locked: Mapping[LaneKey, Lane]
) -> dict[str, list[object]]:
    # A Retry-After of an earlier URL does not bind the new one.
    binding = [_binds(each, locked.get((each.tenant_id, each.webhook_id))) for each in outcomes]
    columns = {name: [getattr(each, name) for each in outcomes] for name in _COLUMNS}
    columns["attempt_id"] = [ids.new() for _ in outcomes]
    columns["status"] = [each.verdict.status for each in outcomes]
    columns["wait"] = [
        each.verdict.row_wait if binds else each.verdict.wait
        for each, binds in zip(outcomes, binding, strict=True)
    ]
    columns["asked_until"] = [
        each.ended_at + each.verdict.lane_wait if binds and each.verdict.lane_wait else None
        for each, binds in zip(outcomes, binding, strict=True)
    ]
    columns["failure"] = [
        None
        if each.verdict.status == "succeeded"
        else retries.fingerprint(each.outcome, each.status_code, each.error)
        for each in outcomes
    ]
    return columns


def _binds(outcome: Outcome, lane: Lane | None) -> bool:
    """Return whether an answer is of the receiver that the lane has now."""
    return lane is not None and outcome.receiver_since == lane.receiver_since


def _claim(outcome: Outcome) -> _Claim:
    return outcome.delivery_id, outcome.claim_no


def _fold(
    state: Lane, outcomes: Sequence[Outcome], first_pause: timedelta, *, recover: bool
) -> LaneChange:
    """Return the change of a lane after outcomes; `recover` also brings waiting rows forward."""
    health = state.health
    for each in outcomes:
        health = lane_health.after(health, each, first_pause)
    if recover:
        health = replace(health, recovering_since=state.now)
    learned = lane_health.concurrency_after(state.learned, outcomes, state.max_in_flight, state.now)
    begins = health.recovering_since and not state.health.recovering_since
    if begins:
        # A receiver that is back is sent to as slowly as a new one.
        learned = lane_health.Concurrency()
    change = LaneChange(state.tenant_id, state.webhook_id, health, learned)
    if begins:
        change.wake_up(state.now)
    return change


def _judged(
    state: Lane, health: Health, outcomes: Sequence[Outcome], disable_after: timedelta
) -> Reason | None:
    """Return why the webhook is to be disabled, or its owner to be warned; None for neither.

    A webhook is disabled only when a delivery has used up its retry schedule or is older than the
    schedule lasts, never by a delivery's first attempts.
    """
    if any(each.verdict.gone for each in outcomes):
        return Reason("gone", state.receiver_since)
    at = outcomes[-1].ended_at if outcomes else state.now
    since = only_failed_since(health, at) if outcomes else None
    if since is None:
        return None
    code = "refusing" if refusing_since(health, at) else "failing"
    if at - since >= disable_after and any(each.verdict.schedule_over for each in outcomes):
        return Reason(code, state.receiver_since, since)
    warns = health.warned_at is None and at - since >= disable_after / 2
    return Reason(code, state.receiver_since, since, warns=True) if warns else None
