"""Sends waiting deliveries now, for a receiver that is back hours before their next attempts.

All that waits on a webhook is a job, like a bulk replay: at a rate, with its progress. It ends when
each delivery was tried; what fails then waits for its next attempt as before.
"""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from psycopg.rows import dict_row
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
from app.database import cursor, database_now
from app.errors import Conflict, NotFound, WebhookDisabled
from app.models import Job

KIND = "retry_now"
# Rows of a lane in one transaction, which holds its lock.
MOST_AT_ONCE = 5_000
_PARK, _BRING = "park", "bring"
# Counting reads all that is open: of many, once for so many steps; waiting, more rarely with time.
_FEW, _STEPS_BETWEEN_COUNTS = 10_000, 10
_COUNT_AGAIN = (timedelta(seconds=1), timedelta(minutes=1))

# As of its snapshot: what is committed while it reads is none of these.
_OPEN = """
SELECT statement_timestamp() AS as_of, count(*) AS count, min(id::text)::uuid AS oldest,
       count(*) FILTER (WHERE lease_until > clock_timestamp()) AS in_flight
  FROM open_deliveries
 WHERE tenant_id = (SELECT %(tenant)s::uuid) AND webhook_id = ANY (%(lanes)s)
"""


def all_of(
    session: Session, caller: Caller, webhook_id: UUID | None, rate: int | None
) -> dict[str, Any]:
    """Begin to send all that waits on a webhook, at most `rate` a second; return count and job.

    An open job of this webhook is cancelled. Raises `NotFound`, `WebhookDisabled`, and `Conflict`
    for a webhook that is held.
    """
    tenant_id = caller.tenant_id
    webhook = webhooks.lock(session, tenant_id, webhook_id)
    webhooks.require_enabled(webhook)
    lane = lanes.load(session, tenant_id, webhook.id, locked=False)
    if lane is not None and lane.held:
        raise Conflict(
            "This webhook is held: what waits is sent once it is released. "
            'Release it: PATCH it with {"held": false}.'
        )
    wanted = {"tenant": tenant_id, "lanes": lanes.of_webhook(session, tenant_id, webhook.id)}
    found = cursor(session).execute(_OPEN, wanted).fetchone()
    assert found is not None  # noqa: S101  # an aggregate is one row
    as_of, count, oldest, in_flight = found
    earlier = job_queue.open_job(session, tenant_id, KIND, webhook.id.hex)
    if earlier is not None:
        control.cancel(session, tenant_id, earlier.id)
        earlier.error = "A later request to send what waits took its place."
        session.flush()
    job = job_queue.enqueue(
        session,
        tenant_id,
        kind=KIND,
        args={
            "webhook_id": ids.text("whk", webhook.id),
            "rate": rate,
            "as_of": rfc3339(as_of),
            "oldest": oldest and ids.text("dlv", oldest),
            "until": rfc3339(as_of + timedelta(seconds=count / rate) if rate else as_of),
        },
        dedupe_key=webhook.id.hex,
        progress={
            "selected": count,
            **dict.fromkeys(("sent", "succeeded", "failed", "cancelled", "retrying"), 0),
            "waiting": count,
        },
    )
    told = {"count": count - in_flight, "job_id": ids.text("job", job.id)}
    target = ("webhook", ids.text("whk", webhook.id))
    details = {**told, "rate": rate}
    chain.append_by(session, caller, "deliveries.retry_now", target=target, details=details)
    return told


# Of the rows that were open then, those that had no attempt since. A rate first parks what is due,
# but for what is urgent: so it was due by its schedule. A lane's next attempt is a probe.
_UNTRIED = "d.created_at <= %(as_of)s AND coalesce(d.attempted_at < %(as_of)s, true)"
_IS_DUE = f"d.next_attempt_at <= %(as_of)s AND {_UNTRIED}"
_WAITS = f"d.next_attempt_at > (SELECT clock_timestamp()) AND {_UNTRIED}"
_WAS_PARKED = "(d.next_attempt_at <> %(until)s)::int"
_END_PAUSE = """
UPDATE lanes SET paused_until = least(paused_until, clock_timestamp())
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s
"""


def step(session: Session, tenant_id: UUID, job: Job) -> Step:
    """Do the next step: park what is due where there is a rate, bring forward, or wait.

    The cursor is what it does, and how often it did.
    """
    wanted = _wanted(job)
    rate, progress = wanted["rate"], job_rows.progress_of(job)
    phase, _, steps = (job.cursor or _PARK).partition(" ")
    done = int(steps or 0)
    try:
        webhook = webhooks.lock(session, tenant_id, wanted["webhook"])
        webhooks.require_enabled(webhook)
    except (NotFound, WebhookDisabled):
        reason = "The webhook was disabled or deleted: what waited was cancelled."
        return Step(f"{phase} {done}", progress | count_outcomes(session, job), stopped=reason)
    keys = [(tenant_id, each) for each in lanes.of_webhook(session, tenant_id, webhook.id)]
    if phase == _PARK:
        parked = [
            recovery.move(session, key, _IS_DUE, wanted, MOST_AT_ONCE, to="%(until)s", counts="0")[
                0
            ]
            for key in (keys if rate else ())
        ]
        more = MOST_AT_ONCE in parked
        for key in keys:
            if not more:
                cursor(session).execute(_END_PAUSE, {"tenant": tenant_id, "webhook": key[1]})
            lanes.reschedule(session, *key)
        wakeups.ring_lanes(session, () if more else keys)
        return Step(f"{_PARK if more else _BRING} {done + 1}", progress)
    most, moved = min(rate or MOST_AT_ONCE, MOST_AT_ONCE), 0
    for key in keys:
        lane = lanes.load(session, *key, locked=False)
        held_up = lane is None or lane.held or lane.suspended or bool(rate and lane.paused)
        if moved < most and not held_up:
            brought, _ = recovery.move(
                session,
                key,
                _WAITS,
                wanted,
                most - moved,
                priorities=PRIORITIES,
                counts=_WAS_PARKED,
            )
            lanes.reschedule(session, *key)
            wakeups.ring_lanes(session, [key] * bool(brought))
            moved += brought
    if progress["selected"] <= _FEW or not moved or done % _STEPS_BETWEEN_COUNTS == 0:
        progress |= count_outcomes(session, job)
    if moved:
        wait = timedelta(seconds=moved / rate) if rate else timedelta(0)
        return Step(f"{_BRING} {done + 1}", progress, wait)
    if not progress["waiting"]:
        return Step(None, progress)
    age, (shortest, longest) = database_now(session) - job.created_at, _COUNT_AGAIN
    return Step(f"{_BRING} {done + 1}", progress, min(max(age / 20, shortest), longest))


def _wanted(job: Job) -> dict[str, Any]:
    """Return a job's arguments, which are also the parameters of its statements."""
    args = job_rows.args_of(job)
    as_of = datetime.fromisoformat(args["as_of"])
    return {
        "webhook": ids.read("whk", args["webhook_id"]),
        "rate": args["rate"],
        "as_of": as_of,
        "until": datetime.fromisoformat(args["until"]),
        "oldest": ids.read("dlv", args["oldest"]) if args["oldest"] else earliest_id(as_of),
        "newest": latest_id(as_of + timedelta(seconds=1)),
    }


# What had succeeded is not read.
_TALLY = f"""
SELECT open.*, ended.*
  FROM (SELECT count(*) FILTER (WHERE {_UNTRIED}) AS waiting,
               count(*) FILTER (WHERE NOT ({_UNTRIED})) AS retrying
          FROM open_deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.webhook_id = ANY (%(lanes)s)
           AND d.created_at <= %(as_of)s) AS open,
       (SELECT count(*) FILTER (WHERE d.status = 'failed') AS failed,
               count(*) FILTER (WHERE d.status = 'cancelled') AS cancelled
          FROM ended_deliveries AS d
         WHERE d.tenant_id = (SELECT %(tenant)s::uuid) AND d.webhook_id = ANY (%(lanes)s)
           AND d.status IN ('failed', 'cancelled')
           AND d.id >= %(oldest)s AND d.id < %(newest)s
           AND d.finished_at > %(as_of)s AND d.created_at <= %(as_of)s) AS ended
"""


def count_outcomes(session: Session, job: Job) -> dict[str, int]:
    """Count what became of a job's deliveries.

    `waiting` had no attempt since it began, `retrying` failed at one; `sent` are those tried. What
    was made before it began and committed after is among them, but was not selected.
    """
    wanted = _wanted(job) | {"tenant": job.tenant_id}
    wanted["lanes"] = lanes.of_webhook(session, job.tenant_id, wanted["webhook"])
    counts = cursor(session, dict_row).execute(_TALLY, wanted).fetchone()
    assert counts is not None  # noqa: S101  # aggregates are one row
    sent = job_rows.progress_of(job)["selected"] - counts["waiting"] - counts["cancelled"]
    succeeded = sent - counts["retrying"] - counts["failed"]
    return {**counts, "sent": max(sent, 0), "succeeded": max(succeeded, 0)}


# A delivery that is due already counts no further unscheduled attempt. A lease that has ended is a
# dead worker's.
_ONE = f"""
UPDATE open_deliveries
   SET unscheduled = least(unscheduled + (next_attempt_at > clock_timestamp())::int, attempts),
       next_attempt_at = clock_timestamp(), priority = {PRIORITY_URGENT}
 WHERE tenant_id = %(tenant)s AND webhook_id = %(webhook)s AND id = %(delivery)s
   AND (lease_until IS NULL OR lease_until <= clock_timestamp())
"""


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
    lane = found.webhook_id
    wanted = {"tenant": tenant_id, "webhook": lane, "delivery": found.id}
    if cursor(session).execute(_ONE, wanted).rowcount == 0:
        raise Conflict(f"This delivery is {found.status}: it does not wait for an attempt.")
    lanes.due_now(session, tenant_id, lane)
    wakeups.ring_lanes(session, [(tenant_id, lane)])
    target = ("delivery", ids.text("dlv", found.id))
    details = {"webhook_id": ids.text("whk", webhook.id)}
    chain.append_by(session, caller, "delivery.retry_now", target=target, details=details)
