"""Sends waiting deliveries now, for a receiver that is back hours before their next attempts.

All that waits on a webhook is a job, like a bulk replay: at a rate, with its progress. It ends when
each delivery was tried; what fails then waits for its next attempt as before.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import class_row, dict_row
from sqlalchemy.orm import Session

from app import ids
from app.clock import rfc3339
from app.core import wakeups
from app.core.audit import chain
from app.core.callers import Caller
from app.core.delivery.events import PRIORITIES, PRIORITY_URGENT
from app.core.delivery.history import delivery_history
from app.core.delivery.history.delivery_history import earliest_id, latest_id
from app.core.delivery.lanes import lanes, recovery
from app.core.jobs import control, job_queue, job_rows
from app.core.jobs.steps import Step
from app.core.webhooks import webhooks
from app.database import Tx, cursor, database_now
from app.errors import Conflict, NotFound, WebhookDisabled
from app.models import Job

# Rows in one transaction, which holds the lane's lock.
MOST_AT_ONCE = 5_000
_NUMBERED_AT_MOST = 20_000


@dataclass(frozen=True)
class Open:
    """A lane's deliveries that have not ended as of one moment: so many, `in_flight` of them.

    They are its events with a number below `sequence`, and replays and tests made by `as_of`.
    `oldest` is a lower bound of their ids.
    """

    as_of: datetime
    sequence: int
    count: int
    in_flight: int
    oldest: UUID | None


_OPEN = """
SELECT clock_timestamp() AS as_of, l.next_sequence AS sequence, open.*
  FROM lanes AS l
 CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(id::text)::uuid AS oldest,
           count(*) FILTER (WHERE lease_until > clock_timestamp()) AS in_flight
      FROM open_deliveries
     WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = (SELECT %(webhook)s::uuid)
       AND (sequence IS NOT NULL OR kind <> 'event')) AS open
 WHERE l.tenant_id = %(tenant)s AND l.webhook_id = %(webhook)s
"""


def open_of(tx: Tx, tenant_id: UUID, webhook_id: UUID) -> Open:
    """Return what a locked lane has open now.

    Numbers its events first, up to 20,000: a number says which were there.
    """
    for _ in range(_NUMBERED_AT_MOST // lanes.NUMBER_AT_ONCE):
        if not lanes.number_locked(tx, tenant_id, webhook_id):
            break
    wanted = {"tenant": tenant_id, "webhook": webhook_id}
    found = cursor(tx, class_row(Open)).execute(_OPEN, wanted).fetchone()
    assert found is not None  # noqa: S101  # every webhook has a lane
    return found


# The rows of an `Open`; those of it that had no attempt since.
_OF = """
CASE WHEN d.kind = 'event' THEN d.sequence < %(sequence)s ELSE d.created_at <= %(as_of)s END
"""
_UNTRIED = "coalesce(d.attempted_at < %(as_of)s, true)"


def park(tx: Tx, tenant_id: UUID, webhook_id: UUID, found: Mapping[str, Any]) -> bool:
    """Let up to 5,000 due rows wait `until` later, but urgent ones; say whether more may be due."""
    lane = (tenant_id, webhook_id)
    which = f"d.next_attempt_at <= %(as_of)s AND {_UNTRIED} AND {_OF}"
    moved = recovery.move(tx, lane, which, found, MOST_AT_ONCE, to="%(until)s", counts="0")
    lanes.reschedule(tx, tenant_id, webhook_id)
    return moved == MOST_AT_ONCE


def bring(tx: Tx, tenant_id: UUID, webhook_id: UUID, found: Mapping[str, Any], most: int) -> int:
    """Make up to `most` waiting rows of a locked lane due, the earliest first; return how many."""
    which = f"d.next_attempt_at > clock_timestamp() AND {_UNTRIED} AND {_OF}"
    # What was parked was due by its schedule.
    counts = "(d.next_attempt_at <> %(until)s)::int"
    lane = (tenant_id, webhook_id)
    moved = recovery.move(tx, lane, which, found, most, priorities=PRIORITIES, counts=counts)
    lanes.reschedule(tx, tenant_id, webhook_id)
    return moved


# A lane's next attempt is a probe.
_END_PAUSE = """
UPDATE lanes SET paused_until = least(paused_until, clock_timestamp())
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
"""


_TALLY = f"""
SELECT open.*, ended.*
  FROM (SELECT count(*) FILTER (WHERE {_UNTRIED}) AS waiting,
               count(*) FILTER (WHERE NOT {_UNTRIED}) AS retrying
          FROM open_deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND d.webhook_id = (SELECT %(webhook)s::uuid) AND {_OF}) AS open,
       (SELECT count(*) FILTER (WHERE d.status = 'failed') AS failed,
               count(*) FILTER (WHERE d.status = 'cancelled') AS cancelled
          FROM ended_deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid)
           AND d.webhook_id = (SELECT %(webhook)s::uuid)
           AND d.status IN ('failed', 'cancelled')
           AND d.id >= %(oldest)s AND d.id < %(newest)s
           AND d.finished_at > %(as_of)s AND {_OF}) AS ended
"""


def tally(tx: Tx, tenant_id: UUID, webhook_id: UUID, found: Mapping[str, Any]) -> dict[str, int]:
    """Count what became of the rows of an `Open`, whose fields `found` has: those not succeeded.

    `waiting` had no attempt since, `retrying` failed at one. Reads open rows and failures only.
    """
    wanted = {
        **found,
        "tenant": tenant_id,
        "webhook": webhook_id,
        "oldest": found["oldest"] or earliest_id(found["as_of"]),
        "newest": latest_id(found["as_of"] + timedelta(seconds=1)),
    }
    counts = cursor(tx, dict_row).execute(_TALLY, wanted).fetchone()
    assert counts is not None  # noqa: S101  # aggregates are one row
    return counts


# A delivery that is due already counts no further unscheduled attempt. A lease that has ended is a
# dead worker's.
_ONE = f"""
UPDATE open_deliveries
   SET unscheduled = least(unscheduled + (next_attempt_at > clock_timestamp())::int, attempts),
       next_attempt_at = clock_timestamp(), priority = {PRIORITY_URGENT}
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND id = %(delivery)s
   AND (lease_until IS NULL OR lease_until <= clock_timestamp())
"""


def bring_one(tx: Tx, tenant_id: UUID, webhook_id: UUID, delivery_id: UUID) -> bool:
    """Make one row of a locked lane due, before all others; say whether it was waiting."""
    wanted = {"tenant": tenant_id, "webhook": webhook_id, "delivery": delivery_id}
    moved = cursor(tx).execute(_ONE, wanted).rowcount == 1
    if moved:
        lanes.due_now(tx, tenant_id, webhook_id)
    return moved


KIND = "retry_now"
_PARK, _BRING = "park", "bring"
# Counting reads all that is open: of many, once for so many steps; waiting, more rarely with time.
_FEW, _STEPS_BETWEEN_COUNTS = 10_000, 10
_COUNT_AGAIN = (timedelta(seconds=1), timedelta(minutes=1))


def all_of(
    session: Session, caller: Caller, webhook_id: UUID | None, rate: int | None
) -> dict[str, Any]:
    """Begin to send all that waits on a webhook, at most `rate` a second; return count and job.

    An open job of this webhook is cancelled. Raises `NotFound`, `WebhookDisabled`, and `Conflict`
    for a webhook that is held.
    """
    webhook = webhooks.lock(session, caller.tenant_id, webhook_id)
    webhooks.require_enabled(webhook)
    lane = lanes.load(session, caller.tenant_id, webhook.id, locked=False)
    if lane is not None and lane.held:
        raise Conflict(
            "This webhook is held: what waits is sent once it is released. "
            'Release it: PATCH it with {"held": false}.'
        )
    of_webhook = lanes.of_webhook(session, caller.tenant_id, webhook.id)
    found = [open_of(session, caller.tenant_id, each) for each in of_webhook]
    count = sum(each.count for each in found)
    oldest = min((each.oldest for each in found if each.oldest), default=None)
    as_of = found[-1].as_of
    earlier = job_queue.open_job(session, caller.tenant_id, KIND, webhook.id.hex)
    if earlier is not None:
        control.cancel(session, caller.tenant_id, earlier.id)
        earlier.error = "A later request to send what waits took its place."
        session.flush()
    until = as_of + timedelta(seconds=count / rate) if rate else as_of
    job = job_queue.enqueue(
        session,
        caller.tenant_id,
        kind=KIND,
        args={
            "webhook_id": ids.text("whk", webhook.id),
            "rate": rate,
            "as_of": rfc3339(as_of),
            # Of each lane, named by its number.
            "sequences": {
                str(ids.lane_number(key)): each.sequence
                for key, each in zip(of_webhook, found, strict=True)
            },
            "oldest": oldest and ids.text("dlv", oldest),
            "until": rfc3339(until),
        },
        dedupe_key=webhook.id.hex,
        progress={
            "selected": count,
            **dict.fromkeys(("sent", "succeeded", "failed", "cancelled", "retrying"), 0),
            "waiting": count,
        },
    )
    in_flight = sum(each.in_flight for each in found)
    told = {"count": count - in_flight, "job_id": ids.text("job", job.id)}
    target = ("webhook", ids.text("whk", webhook.id))
    details = {**told, "rate": rate}
    chain.append_by(session, caller, "deliveries.retry_now", target=target, details=details)
    return told


def step(session: Session, tenant_id: UUID, job: Job) -> Step:
    """Do the next step: park what is due where there is a rate, bring forward, or wait.

    The cursor is what it does, and how often it did.
    """
    args, plan = _plan(job)
    progress = job_rows.progress_of(job)
    phase, _, steps = (job.cursor or _PARK).partition(" ")
    done = int(steps or 0)
    try:
        webhook = webhooks.lock(session, tenant_id, ids.read("whk", args["webhook_id"]))
        webhooks.require_enabled(webhook)
    except (NotFound, WebhookDisabled):
        reason = "The webhook was disabled or deleted: what waited was cancelled."
        return Step(f"{phase} {done}", progress | count_outcomes(session, job), stopped=reason)
    rate = args["rate"]
    if phase == _PARK:
        parked = [
            lane for lane, found in plan.items() if rate and park(session, tenant_id, lane, found)
        ]
        for lane in () if parked else plan:
            cursor(session).execute(_END_PAUSE, {"tenant": tenant_id, "webhook": lane})
            lanes.reschedule(session, tenant_id, lane)
            wakeups.ring_lanes(session, [(tenant_id, lane)])
        return Step(f"{_PARK if parked else _BRING} {done + 1}", progress)
    moved = _bring(session, tenant_id, plan, rate)
    few = progress["selected"] <= _FEW
    if few or not moved or done % _STEPS_BETWEEN_COUNTS == 0:
        progress |= count_outcomes(session, job)
    if moved:
        wait = timedelta(seconds=moved / rate) if rate else timedelta(0)
        return Step(f"{_BRING} {done + 1}", progress, wait)
    if not progress["waiting"]:
        return Step(None, progress)
    age, (shortest, longest) = database_now(session) - job.created_at, _COUNT_AGAIN
    return Step(f"{_BRING} {done + 1}", progress, min(max(age / 20, shortest), longest))


def _bring(
    session: Session, tenant_id: UUID, plan: Mapping[UUID, Mapping[str, Any]], rate: int | None
) -> int:
    """Bring waiting rows of each lane forward, as many in all as a step may; return how many."""
    most = min(rate or MOST_AT_ONCE, MOST_AT_ONCE)
    moved = 0
    for key, found in plan.items():
        lane = lanes.load(session, tenant_id, key, locked=False)
        held_up = lane is None or lane.held or lane.suspended or bool(rate and lane.paused)
        brought = 0
        if moved < most and not held_up:
            brought = bring(session, tenant_id, key, found, most - moved)
        if brought:
            wakeups.ring_lanes(session, [(tenant_id, key)])
        moved += brought
    return moved


def count_outcomes(session: Session, job: Job) -> dict[str, int]:
    """Count what became of a job's deliveries: `sent` are those that were tried since it began."""
    _, plan = _plan(job)
    counts: Counter[str] = Counter()
    for lane, found in plan.items():
        counts.update(tally(session, job.tenant_id, lane, found))
    unsent = counts["waiting"] + counts["cancelled"]
    sent = job_rows.progress_of(job)["selected"] - unsent
    succeeded = sent - counts["retrying"] - counts["failed"]
    return {**counts, "sent": sent, "succeeded": succeeded}


def _plan(job: Job) -> tuple[dict[str, Any], Mapping[UUID, Mapping[str, Any]]]:
    """Return a job's arguments, and of each lane those that say which deliveries it has."""
    args = job_rows.args_of(job)
    webhook_id = ids.read("whk", args["webhook_id"])
    found = {
        "as_of": datetime.fromisoformat(args["as_of"]),
        "until": datetime.fromisoformat(args["until"]),
        "oldest": args["oldest"] and ids.read("dlv", args["oldest"]),
    }
    return args, {
        ids.lane_of(webhook_id, int(number)): {**found, "sequence": sequence}
        for number, sequence in args["sequences"].items()
    }


def one(
    session: Session, caller: Caller, webhook_id: UUID | None, delivery_id: UUID | None
) -> None:
    """Make one delivery due, even to a paused or held webhook, where it is the probe.

    Raises `NotFound`, `WebhookDisabled`, and `Conflict` when it does not wait for an attempt.
    """
    tenant_id = caller.tenant_id
    webhook = webhooks.lock(session, tenant_id, webhook_id)
    found = delivery_history.find(session, tenant_id, webhook.id, delivery_id)
    webhooks.require_enabled(webhook)
    if not bring_one(session, tenant_id, found.row.webhook_id, found.id):
        raise Conflict(f"This delivery is {found.row.status}: it does not wait for an attempt.")
    wakeups.ring_lanes(session, [(tenant_id, found.row.webhook_id)])
    target = ("delivery", ids.text("dlv", found.id))
    details = {"webhook_id": ids.text("whk", webhook.id)}
    chain.append_by(session, caller, "delivery.retry_now", target=target, details=details)
