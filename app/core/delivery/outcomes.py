"""Recording what became of attempts: many in one transaction, each at most once.

The deliveries, the history, the totals and the health of the lanes change together. Lanes are
locked first, in one order, so two workers that record at once wait and do not deadlock.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row
from sqlalchemy.orm import Session

from app import ids
from app.core.delivery import lane_health
from app.core.delivery.events import PRIORITY_LIVE, PRIORITY_URGENT
from app.core.delivery.lane_health import Health
from app.core.delivery.retries import Verdict
from app.core.webhook.disabling import Reason
from app.database import cursor

LaneKey = tuple[UUID, UUID]
# A delivery and the claim under which it was sent: one that was taken over may be here twice.
_Claim = tuple[UUID, int]


@dataclass(frozen=True)
class Outcome:
    """One attempt that was made, and what it means; times are the database's."""

    tenant_id: UUID
    webhook_id: UUID
    delivery_id: UUID
    url: str
    kind: str
    claim_no: int
    number: int
    probe: bool
    verdict: Verdict
    outcome: str
    started_at: datetime
    ended_at: datetime
    dns_ms: float | None = None
    connect_ms: float | None = None
    tls_ms: float | None = None
    first_byte_ms: float | None = None
    total_ms: float | None = None
    status_code: int | None = None
    response_headers: str | None = None
    response_body: bytes | None = None
    error: str | None = None


@dataclass(frozen=True)
class Recorded:
    """What came of recording outcomes.

    `fenced` are those whose claim was taken over; `ended` counts the deliveries that ended, by kind
    and status; `pauses` the pauses that began or grew; `to_disable` says which webhooks are to be
    disabled and why.
    """

    written: int
    fenced: list[Outcome]
    ended: Counter[tuple[str, str]]
    pauses: int
    to_disable: dict[LaneKey, Reason]


def record(
    session: Session,
    outcomes: Sequence[Outcome],
    *,
    first_pause: timedelta,
    disable_after: timedelta,
    slow: Sequence[LaneKey] = (),
) -> Recorded:
    """Write outcomes of any tenants' attempts, in a session that sees them all.

    `slow` names lanes that have a POST out for over a second. An outcome whose claim was taken over
    changes nothing; one whose delivery was cancelled meanwhile is kept as history.
    """
    by_lane: dict[LaneKey, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_lane[outcome.tenant_id, outcome.webhook_id].append(outcome)
    lanes = _lock(session, sorted({*by_lane, *slow}))
    done = _write(session, outcomes) if outcomes else {}
    changes = []
    ended: Counter[tuple[str, str]] = Counter()
    pauses = 0
    to_disable: dict[LaneKey, Reason] = {}
    for key, state in lanes.items():
        mine = [each for each in by_lane[key] if (each.delivery_id, each.claim_no) in done]
        # What another URL answered, before it was changed, says nothing about this one.
        telling = [each for each in mine if each.url == state.url]
        change = _fold(state, telling, first_pause=first_pause)
        for each in mine:
            _count(change, ended, each, done[each.delivery_id, each.claim_no])
        if key in slow:
            change.slow_at = state.now
        changes.append(change)
        pauses += change.paused_until is not None and change.pause_level > state.pause_level
        if code := _why_disable(change, telling, disable_after):
            to_disable[key] = Reason(code, state.url)
    _update(session, changes)
    fenced = [each for each in outcomes if (each.delivery_id, each.claim_no) not in done]
    return Recorded(len(done), fenced, ended, pauses, to_disable)


@dataclass(frozen=True)
class _LaneState:
    tenant_id: UUID
    webhook_id: UUID
    url: str
    now: datetime
    paused_until: datetime | None
    pause_level: int
    consecutive_failures: int
    failing_since: datetime | None
    last_success_at: datetime | None
    slow_at: datetime | None


_WANTED = """
  JOIN unnest(%s::uuid[], %s::uuid[]) AS wanted (tenant_id, webhook_id)
    ON l.tenant_id = wanted.tenant_id AND l.webhook_id = wanted.webhook_id
"""

_LOCK = f"""
SELECT 1 FROM lanes AS l {_WANTED}
 ORDER BY l.tenant_id, l.webhook_id
   FOR NO KEY UPDATE OF l
"""

# A statement of its own: with the lock, the webhook would be as it was before the wait for it.
_READ = f"""
SELECT l.tenant_id, l.webhook_id, w.url, clock_timestamp() AS now, l.paused_until, l.pause_level,
       l.consecutive_failures, l.failing_since, l.last_success_at, l.slow_at
  FROM lanes AS l {_WANTED}
  JOIN webhooks AS w ON w.tenant_id = l.tenant_id AND w.id = l.webhook_id
"""


def _lock(session: Session, keys: Sequence[LaneKey]) -> dict[LaneKey, _LaneState]:
    wanted = ([key[0] for key in keys], [key[1] for key in keys])
    cursor(session).execute(_LOCK, wanted)
    states = cursor(session, class_row(_LaneState)).execute(_READ, wanted).fetchall()
    return {(state.tenant_id, state.webhook_id): state for state in states}


_WRITE = f"""
WITH outcome AS (
    SELECT * FROM unnest(
        %(tenant_id)b::uuid[], %(attempt_id)b::uuid[], %(delivery_id)b::uuid[],
        %(claim_no)b::bigint[], %(number)b::smallint[], %(status)b::text[],
        %(wait)b::interval[], %(outcome)b::text[], %(started_at)b::timestamptz[],
        %(ended_at)b::timestamptz[], %(dns_ms)b::real[], %(connect_ms)b::real[],
        %(tls_ms)b::real[], %(first_byte_ms)b::real[], %(total_ms)b::real[],
        %(status_code)b::smallint[], %(response_headers)b::text[], %(response_body)b::bytea[],
        %(error)b::text[])
    AS o (tenant_id, attempt_id, delivery_id, claim_no, number, status, wait, outcome, started_at,
          ended_at, dns_ms, connect_ms, tls_ms, first_byte_ms, total_ms, status_code,
          response_headers, response_body, error)
), done AS (
    UPDATE deliveries AS d
       SET attempts = o.number, claims_lost = 0,
           status = CASE WHEN d.finished_at IS NULL THEN o.status ELSE d.status END,
           priority = CASE WHEN d.priority = {PRIORITY_URGENT} THEN {PRIORITY_LIVE}
                           ELSE d.priority END,
           next_attempt_at = CASE WHEN d.finished_at IS NULL THEN o.ended_at + o.wait END,
           finished_at = CASE WHEN d.finished_at IS NULL AND o.wait IS NULL
                              THEN clock_timestamp() ELSE d.finished_at END
      FROM outcome AS o
     WHERE d.tenant_id = o.tenant_id AND d.id = o.delivery_id
       AND d.claim_no = o.claim_no AND d.attempts = o.number - 1
       AND d.status IN ('sending', 'cancelled')
    RETURNING d.id, d.claim_no, d.status, d.next_attempt_at
), history AS (
    INSERT INTO delivery_attempts
           (tenant_id, id, delivery_id, number, outcome, started_at, dns_ms, connect_ms, tls_ms,
            first_byte_ms, total_ms, status_code, response_headers, response_body, error)
    SELECT o.tenant_id, o.attempt_id, o.delivery_id, o.number, o.outcome, o.started_at, o.dns_ms,
           o.connect_ms, o.tls_ms, o.first_byte_ms, o.total_ms, o.status_code, o.response_headers,
           o.response_body, o.error
      FROM outcome AS o JOIN done ON done.id = o.delivery_id AND done.claim_no = o.claim_no
)
SELECT id, claim_no, status, next_attempt_at FROM done
"""

_COLUMNS = (
    *("tenant_id", "delivery_id", "claim_no", "number", "outcome", "started_at", "ended_at"),
    *("dns_ms", "connect_ms", "tls_ms", "first_byte_ms", "total_ms", "status_code"),
    *("response_headers", "response_body", "error"),
)


@dataclass(frozen=True)
class _Done:
    id: UUID
    claim_no: int
    status: str
    next_attempt_at: datetime | None


def _write(session: Session, outcomes: Sequence[Outcome]) -> dict[_Claim, _Done]:
    columns = {name: [getattr(each, name) for each in outcomes] for name in _COLUMNS}
    columns["attempt_id"] = [ids.new() for _ in outcomes]
    columns["status"] = [each.verdict.status for each in outcomes]
    columns["wait"] = [each.verdict.wait for each in outcomes]
    written = cursor(session, class_row(_Done)).execute(_WRITE, columns).fetchall()
    return {(each.id, each.claim_no): each for each in written}


@dataclass
class _LaneChange:
    tenant_id: UUID
    webhook_id: UUID
    paused_until: datetime | None
    pause_level: int
    consecutive_failures: int
    failing_since: datetime | None
    last_success_at: datetime | None
    slow_at: datetime | None
    due_at: datetime | None = None
    events_succeeded: int = 0
    events_failed: int = 0
    replays_succeeded: int = 0
    replays_failed: int = 0
    tests_succeeded: int = 0
    tests_failed: int = 0


def _fold(state: _LaneState, outcomes: Sequence[Outcome], *, first_pause: timedelta) -> _LaneChange:
    health = Health(
        paused_until=state.paused_until,
        pause_level=state.pause_level,
        consecutive_failures=state.consecutive_failures,
        failing_since=state.failing_since,
        last_success_at=state.last_success_at,
        slow_at=state.slow_at,
    )
    for each in outcomes:
        health = lane_health.after(
            health,
            each.verdict,
            each.status_code,
            each.ended_at,
            probe=each.probe,
            quick=(each.total_ms or 0) < 1000,
            first_pause=first_pause,
        )
    return _LaneChange(state.tenant_id, state.webhook_id, **vars(health))


def _count(
    change: _LaneChange, ended: Counter[tuple[str, str]], outcome: Outcome, done: _Done
) -> None:
    """Add one outcome to the lane's totals, or to what it must wake up for."""
    if done.next_attempt_at is not None:
        change.due_at = min(change.due_at or done.next_attempt_at, done.next_attempt_at)
    elif done.status in ("succeeded", "failed"):
        total = f"{outcome.kind}s_{done.status}"
        setattr(change, total, getattr(change, total) + 1)
        ended[outcome.kind, done.status] += 1


def _why_disable(
    change: _LaneChange, outcomes: Sequence[Outcome], disable_after: timedelta
) -> str | None:
    if any(each.verdict.gone for each in outcomes):
        return "gone"
    if not outcomes or change.failing_since is None:
        return None
    return "failing" if outcomes[-1].ended_at - change.failing_since >= disable_after else None


_UPDATE = """
UPDATE lanes AS l
   SET paused_until = c.paused_until, pause_level = c.pause_level,
       consecutive_failures = c.consecutive_failures, failing_since = c.failing_since,
       last_success_at = c.last_success_at, slow_at = c.slow_at,
       due_at = least(l.due_at,
                      CASE WHEN c.due_at IS NOT NULL THEN greatest(c.due_at, c.paused_until) END),
       events_succeeded = l.events_succeeded + c.events_succeeded,
       events_failed = l.events_failed + c.events_failed,
       replays_succeeded = l.replays_succeeded + c.replays_succeeded,
       replays_failed = l.replays_failed + c.replays_failed,
       tests_succeeded = l.tests_succeeded + c.tests_succeeded,
       tests_failed = l.tests_failed + c.tests_failed
  FROM unnest(%b::uuid[], %b::uuid[], %b::timestamptz[], %b::smallint[], %b::bigint[],
              %b::timestamptz[], %b::timestamptz[], %b::timestamptz[], %b::timestamptz[],
              %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[])
    AS c (tenant_id, webhook_id, paused_until, pause_level, consecutive_failures, failing_since,
          last_success_at, slow_at, due_at, events_succeeded, events_failed, replays_succeeded,
          replays_failed, tests_succeeded, tests_failed)
 WHERE l.tenant_id = c.tenant_id AND l.webhook_id = c.webhook_id
"""


def _update(session: Session, changes: Sequence[_LaneChange]) -> None:
    if changes:
        columns = [list(column) for column in zip(*map(astuple, changes), strict=True)]
        cursor(session).execute(_UPDATE, columns)
