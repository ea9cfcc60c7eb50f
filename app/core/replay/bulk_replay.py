"""Bulk replay: a job that iterates over a selection and creates a replay of each event.

A step's replays, the job's cursor and its progress commit together, so a killed job resumes. It
keeps few replays waiting, so cancelling it leaves the rest unsent; it ends when none waits. Live
events go first.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy.orm import Session

from app import ids
from app.core.audit import chain
from app.core.callers import Caller
from app.core.delivery.events import PRIORITY_BULK, PRIORITY_URGENT
from app.core.delivery.lanes import lanes
from app.core.jobs import control, job_queue, job_rows
from app.core.jobs.steps import JobFailed, Step
from app.core.replay import replay_deliveries, replay_selection
from app.core.replay.replay_deliveries import Pace, Plan, Position, Scan, Source
from app.core.replay.replay_selection import Preview, Selection, Wanted
from app.core.webhooks import webhooks
from app.database import database_now
from app.errors import FieldError, Invalid, NotFound, WebhookDisabled
from app.models import Job

KIND = "bulk_replay"
MOST_A_STEP = 500
# Most replays of a webhook that wait for their first attempt; cancelling the job withdraws them.
MOST_UNSENT = 2_000
# Interval at which a waiting job counts outcomes.
_COUNT_AGAIN = timedelta(seconds=1)
_COUNT_AGAIN_LATER = timedelta(seconds=15)
_SOON = timedelta(minutes=1)
# Counting the outcomes of a job takes longer the more it has sent.
_STEPS_BETWEEN_COUNTS = 10
_DELETED = "The webhook was deleted; the remaining events are not replayed."
_DISABLED = "The webhook was disabled. Enable it and retry this job: it goes on where it stopped."


def preview(
    session: Session,
    caller: Caller,
    webhook_id: UUID | None,
    wanted: Wanted,
    as_of: datetime | None = None,
    *,
    all_webhooks: bool = False,
    most: int | None = None,
) -> Preview:
    """Return the preview of a replay as of now, or `as_of` an earlier preview.

    `most` limits the count to the newest deliveries and events, unless none of these would be sent.
    Raises `NotFound`, also for ids of no delivery, and `Invalid` for an `as_of` in the future.
    """
    one = None if all_webhooks else webhooks.find(session, caller, webhook_id).id
    now = replay_selection.moment(session, caller.tenant_id, one)
    if as_of is not None and as_of > now:
        raise Invalid(FieldError("/as_of", "Send the `as_of` that a dry run returned."))
    if wanted.ids is not None:
        named = replay_selection.one_each(session, caller.tenant_id, one, wanted.ids)
        wanted = Wanted(ids=named)
    selection = Selection(one, wanted, as_of or now)
    found = replay_selection.counted(session, caller.tenant_id, selection, most)
    if found.complete or found.count:
        return found
    return replay_selection.counted(session, caller.tenant_id, selection)


def start(
    session: Session,
    caller: Caller,
    webhook_id: UUID | None,
    wanted: Wanted,
    pace: Pace,
    as_of: datetime | None = None,
    *,
    all_webhooks: bool = False,
) -> Job:
    """Enqueue the replay; return its job. Raises as `preview` does, and `WebhookDisabled`."""
    if not all_webhooks:
        webhooks.require_enabled(webhooks.find(session, caller, webhook_id).webhook)
    found = preview(session, caller, webhook_id, wanted, as_of, all_webhooks=all_webhooks)
    one = found.selection.webhook_id
    of_one = lanes.of_webhook(session, caller.tenant_id, one) if one else found.webhooks
    plan = Plan(found.selection, tuple(of_one), pace)
    args = plan.to_args()
    job = job_queue.enqueue(
        session,
        caller.tenant_id,
        kind=KIND,
        args=args,
        progress={
            "selected": found.count,
            "skipped": 0,
            **dict.fromkeys(replay_deliveries.COUNTS, 0),
        },
    )
    details = {"job_id": ids.text("job", job.id), "count": found.count}
    details |= {name: args[name] for name in ("status", "since", "until", "rate")}
    named = ("event_type", "failed_since", "failed_until", "group", "canary", "stop_after_failures")
    details |= {name: args[name] for name in named if args[name] is not None}
    details |= {} if args["ids"] is None else {"ids": len(args["ids"])}
    tenant = ("tenant", ids.text("ten", caller.tenant_id))
    chain.append_by(
        session,
        caller,
        "deliveries.replay",
        target=("webhook", args["webhook_id"]) if one else tenant,
        details=details,
    )
    return job


def cancel(session: Session, tenant_id: UUID, job_id: UUID | None) -> Job:
    """Cancel an open job, with what a bulk replay has not sent; raises as `control.cancel`."""
    job = job_rows.get(session, tenant_id, job_id)
    if job.kind != KIND:
        return control.cancel(session, tenant_id, job_id)
    plan = Plan.of(job)
    # Lock order: the lanes before the job's row, as in a step.
    stopped = _stopped(session, job, plan)
    job = control.cancel(session, tenant_id, job_id)
    job.cursor, job.progress = stopped.cursor, job_rows.dump(stopped.progress)
    session.flush()
    return job


def _stopped(session: Session, job: Job, plan: Plan, reason: str | None = None) -> Step:
    """Withdraw what was not sent; a resumed job begins anew, and is forgiven what failed."""
    replay_deliveries.take_back(session, job, plan.webhooks)
    counts = replay_deliveries.count_outcomes(session, job)
    position = Position(plan.scans(), forgiven=_failing(counts))
    return Step(
        position.text(), job_rows.progress_of(job) | counts | {"skipped": 0}, stopped=reason
    )


def step(session: Session, tenant_id: UUID, job: Job) -> Step:
    """Do the next step: stop, wait, or make replays, at most a second's worth of the rate.

    Raises `JobFailed` when the job's one webhook was disabled or deleted meanwhile.
    """
    plan = Plan.of(job)
    position = Position.of(job, plan)
    pace = plan.pace
    progress = job_rows.progress_of(job)
    sending = position.left and position.canary != 0
    watched = position.canary is not None or pace.stop_after_failures is not None
    if watched or not sending or position.steps % _STEPS_BETWEEN_COUNTS == 0:
        progress |= replay_deliveries.count_outcomes(session, job)
    if reason := _why_stop(position, pace, progress):
        return _stopped(session, job, plan, reason)
    if sending:
        return _send(session, job, plan, position, progress)
    if position.canary is not None and not progress["waiting"]:
        # The canary has succeeded; the rest follows.
        return Step(replace(position, canary=None).text(), progress)
    if not position.left and not progress["waiting"]:
        progress["skipped"] = max(0, progress["selected"] - progress["sent"])
        return Step(None, progress)
    is_new = database_now(session) - job.created_at < _SOON
    return Step(position.text(), progress, _COUNT_AGAIN if is_new else _COUNT_AGAIN_LATER)


def _why_stop(position: Position, pace: Pace, progress: dict[str, int]) -> str | None:
    failing = _failing(progress) - position.forgiven
    if position.canary is not None and (failing or progress["cancelled"]):
        return f"The canary failed: {failing} of {progress['sent']} sent. Nothing more was sent."
    if pace.stop_after_failures is not None and failing >= pace.stop_after_failures:
        return f"{failing} of {progress['sent']} sent have failed. Nothing more was sent."
    return None


def _failing(progress: Mapping[str, int]) -> int:
    """Return how many replays have failed for good, or at least once."""
    return progress["failed_same"] + progress["failed_otherwise"] + progress["retrying"]


def _send(
    session: Session, job: Job, plan: Plan, position: Position, progress: dict[str, int]
) -> Step:
    """Create the next replays of the first webhook with room for unsent ones."""
    rate = plan.pace.rate
    most = min(MOST_A_STEP, rate or MOST_A_STEP, position.canary or MOST_A_STEP)
    priority = PRIORITY_BULK if position.canary is None else PRIORITY_URGENT
    scan, limit = _next(session, job, position, most, priority)
    if scan is None:
        return Step(position.text(), progress, _COUNT_AGAIN)
    try:
        webhook = webhooks.lock(session, job.tenant_id, ids.webhook_of(scan.webhook))
        webhooks.require_enabled(webhook)
    except (NotFound, WebhookDisabled) as error:
        if plan.selection.webhook_id is not None:
            deleted = isinstance(error, NotFound)
            raise JobFailed(_DELETED if deleted else _DISABLED) from None
        # A replay to all webhooks goes on with the others.
        return Step(position.after(scan, None, 0).text(), progress)
    sources, more = _pick(session, job, plan, scan, limit)
    due = [source for source in sources if source.is_due]
    selected = sum(source.selected for source in sources)
    lane = (job.tenant_id, scan.webhook)
    made = len(replay_deliveries.send(session, lane, due, priority, job.id)) if due else 0
    progress["sent"] += made
    progress["waiting"] += made
    progress["skipped"] += selected - made
    last = sources[-1].id if more else None
    wait = timedelta(seconds=made / rate) if rate else timedelta(0)
    return Step(position.after(scan, last, made).text(), progress, wait)


def _pick(
    session: Session, job: Job, plan: Plan, scan: Scan, limit: int
) -> tuple[list[Source], bool]:
    """Return the next sources, with up to `limit` that are due, and whether more may follow."""
    at_once = limit
    sources = replay_deliveries.pick(session, job, plan.selection, scan, at_once)
    if len(sources) == limit < MOST_A_STEP and not any(source.is_due for source in sources):
        # A job that was resumed passes by what it sent before, however slowly it sends.
        at_once = MOST_A_STEP
        sources = replay_deliveries.pick(session, job, plan.selection, scan, at_once)
    due = [place for place, source in enumerate(sources) if source.is_due]
    if len(due) > limit:
        return sources[: due[limit]], True
    return sources, len(sources) == at_once


def _next(
    session: Session, job: Job, position: Position, most: int, priority: int
) -> tuple[Scan | None, int]:
    """Return the first scan whose webhook has room for more replays, and how many."""
    full: set[UUID] = set()
    for scan in position.left:
        if scan.webhook in full:
            continue
        unsent = replay_deliveries.unsent(
            session, job.tenant_id, scan.webhook, priority, MOST_UNSENT
        )
        if unsent < MOST_UNSENT:
            return scan, min(most, MOST_UNSENT - unsent)
        full.add(scan.webhook)
    return None, 0
